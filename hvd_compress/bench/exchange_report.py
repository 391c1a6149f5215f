"""Tables and pictures of exchanges: what each method takes, and on which networks it pays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator
from rich.table import Table

from hvd_compress.bench.exchange_rows import Row, bits_per_second

__all__ = ["break_even", "break_even_text", "picture", "speed_text", "table"]

Curve = list[tuple[float, float]]


def table(rows: Sequence[Row]) -> Table:
    """One line for each row, with the speed-up over dense on the same network."""
    grid = Table("method", "hosts", "rate", "tensors")
    for heading in ("exchange ms", "encode ms", "wait ms", "decode ms", "payload bytes", "speed-up"):
        grid.add_column(heading, justify="right")
    last = None
    for row in rows:
        if last not in (None, (row.hosts, row.rate, row.tensors)):
            grid.add_section()
        last = row.hosts, row.rate, row.tensors
        dense = _dense_beside(row, rows)
        times = (f"{value:.1f}" for value in (row.exchange_ms, row.encode_ms, row.wait_ms, row.decode_ms))
        speed_up = "" if dense is None else f"{dense.exchange_ms / row.exchange_ms:.2f}"
        grid.add_row(row.method, str(row.hosts), row.rate, str(row.tensors), *times, f"{row.payload_bytes:,}", speed_up)
    return grid


def break_even(curve: Curve) -> float | None:
    """Speed of the links, in bits per second, at which a method begins to lose against dense.

    Parameters
    ----------
    curve : list of (float, float)
        Speed and speed-up over dense, by speed. Between two points it is a straight line on logarithmic scales.

    Returns
    -------
    float or None
        None if it never falls from above 1 to 1.

    Examples
    --------
    >>> round(break_even([(1e8, 4.0), (1e9, 2.0), (4e9, 0.5)]) / 1e9, 3)
    2.0
    >>> break_even([(1e8, 4.0), (1e9, 2.0)])
    """
    for (slow, gain), (fast, loss) in pairwise(curve):
        if gain > 1 >= loss:
            return slow * math.pow(fast / slow, math.log(gain) / math.log(gain / loss))
    return None


def break_even_text(rows: Sequence[Row]) -> str:
    """For each method: up to which speed of the links it pays, out of what was measured."""
    lines = []
    for hosts, tensors in _panels(rows):
        verdicts = [f"{method} {_verdict(curve)}" for method, curve in _curves(rows, hosts, tensors).items()]
        if verdicts:
            lines.append(f"{_title(hosts, tensors)}, faster than dense: {'; '.join(verdicts)}.")
    return "\n".join(lines)


def _verdict(curve: Curve) -> str:
    point = break_even(curve)
    if point is not None:
        return f"up to {speed_text(point)}"
    return "at every speed" if curve[0][1] > 1 else "at no speed" if curve[-1][1] <= 1 else "at the highest speed only"


def _title(hosts: int, tensors: int) -> str:
    return f"{hosts} host{'s' * (hosts > 1)}, {tensors} tensor{'s' * (tensors > 1)}"


def picture(rows: Sequence[Row], path: Path) -> Path:
    """Draw the speed-up over dense against the speed of the links, break-even marked, and write it as PNG."""
    panels = _panels(rows)
    figure = Figure(figsize=(6 * max(1, len(panels)), 5), layout="constrained")
    for axes, (hosts, tensors) in zip(
        figure.subplots(1, max(1, len(panels)), squeeze=False, sharey=True)[0], panels, strict=False
    ):
        _draw(axes, _curves(rows, hosts, tensors))
        axes.set(title=_title(hosts, tensors), ylabel="times faster than dense")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def speed_text(speed: float) -> str:
    """A speed as people write it.

    Examples
    --------
    >>> speed_text(2.5e9), speed_text(1e8)
    ('2.5 Gbit/s', '100 Mbit/s')
    """
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if speed >= unit:
            return f"{speed / unit:.3g} {name}"
    return f"{speed / 1e3:.3g} kbit/s"


def _draw(axes: Axes, curves: dict[str, Curve]) -> None:
    for method, curve in curves.items():
        (line,) = axes.plot(*zip(*curve, strict=True), marker=".", label=f"{method}: {_verdict(curve)}")
        point = break_even(curve)
        if point is not None:
            axes.plot(point, 1, marker="o", markersize=9, fillstyle="none", color=line.get_color())
    axes.axhline(1, color="black", linewidth=1, linestyle="--", label="dense (o: break-even)")
    axes.set(xscale="log", yscale="log", xlabel="speed of the links")
    speeds = sorted({speed for curve in curves.values() for speed, _ in curve})
    axes.set_xticks(speeds, [speed_text(speed) for speed in speeds])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}", minor_formatter=NullFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small", title="faster than dense")


def _panels(rows: Iterable[Row]) -> list[tuple[int, int]]:
    return sorted({(row.hosts, row.tensors) for row in rows})


def _curves(rows: Sequence[Row], hosts: int, tensors: int) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for row in rows:
        dense = _dense_beside(row, rows)
        if (row.hosts, row.tensors) == (hosts, tensors) and dense not in (None, row):
            curves.setdefault(row.method, []).append((_speed(dense), dense.exchange_ms / row.exchange_ms))
    return {method: sorted(curve) for method, curve in curves.items()}


def _dense_beside(row: Row, rows: Iterable[Row]) -> Row | None:
    network = row.hosts, row.rate, row.tensors, row.n
    return next((o for o in rows if o.method == "dense" and (o.hosts, o.rate, o.tensors, o.n) == network), None)


def _speed(dense: Row) -> float:
    """Speed of the links; where nothing limits them, that at which the dense gradient went through."""
    bits = 8 * dense.payload_bytes * 2 * max(1, dense.hosts - 1) / max(2, dense.hosts)
    return bits_per_second(dense.rate) or bits / dense.exchange_ms * 1e3
