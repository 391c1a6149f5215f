"""A plot of how the time to encode and to decode grows with size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_compress.bench.encode import Row
from hvd_compress.cli.tensors import naming

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_times"]

_COLOURS, _MARKERS = [f"C{i}" for i in range(10)], "os^vDP*X<>ph"


def draw_times(path: Path, rows: Sequence[Row], title: str) -> None:
    """Draw time to encode and to decode against size, a line for each codec and number of threads."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 6), layout="constrained")
    FigureCanvasAgg(figure)
    both = figure.subplots(1, 2, sharey=True)
    for axes, what in zip(both, ("encode", "decode"), strict=True):
        _draw(axes, rows, what)
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize="small")
    figure.suptitle(title)
    with naming(path):
        figure.savefig(path, dpi=120)


def _draw(axes: Axes, rows: Sequence[Row], what: str) -> None:
    styles = dict(
        zip(dict.fromkeys(row.codec for row in rows), zip(cycle(_COLOURS), cycle(_MARKERS), strict=True), strict=False)
    )
    dashes = dict(zip(dict.fromkeys(row.threads for row in rows), cycle(("-", "--", ":")), strict=False))
    lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in rows:
        timing = getattr(row, what)
        if timing is not None:
            lines.setdefault((row.codec, row.threads), []).append((row.n, 1e3 * timing.median))
    for (codec, threads), points in lines.items():
        colour, marker = styles[codec]
        label = f"{codec}, {threads} thread{'s' * (threads > 1)}"
        axes.plot(
            *zip(*sorted(points), strict=True),
            color=colour,
            marker=marker,
            linestyle=dashes[threads],
            label=label,
            markersize=5,
        )
    copies = sorted({row.n: 1e3 * row.copy.median for row in rows}.items())
    axes.plot(*zip(*copies, strict=True), "k-.", label="copy, 1 thread")
    axes.set(xscale="log", yscale="log", xlabel="entries", ylabel=f"{what}, ms")
    axes.grid(True, alpha=0.3)
