"""What was measured, for people: a table for each size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from hvd_compress.bench.encode import Row
from hvd_compress.bench.machine import Timing, find_torch
from hvd_compress.bench.training import WARM_UP_STEPS
from hvd_compress.native import kernels

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["WIDTH", "broken", "digits", "environment", "missing", "print_rows"]

WIDTH = 24
"""Of the column of configs, in characters."""
_NOTE = (
    "x copy: multiples of the time in which the gradient is copied, by one thread or the device, measured beside. +-: "
    "distance between the quartiles of the repetitions. GB/s: bytes of the gradient by the time to encode. decode: "
    "what came of {workers} rank{s}. bytes: handed over by a rank."
)


def missing(device: str = "cpu") -> list[str]:
    """Say what would make a difference and is not installed."""
    notes = []
    if device == "cpu" and kernels is None:
        notes.append("The C++ kernels are not built: the frameworks' own operations are measured.")
    if device != "cpu" and not _triton(device):
        notes.append("Triton is not installed, or not to be used: torch's own operations are measured.")
    if find_torch() is None:
        notes.append("torch is not installed: NumPy arrays are measured.")
    return notes


def environment(device: str) -> str:
    """Say what is measured, in one line."""
    torch = find_torch()
    where = torch.cuda.get_device_name() if device != "cpu" else device
    arrays = f"torch {torch.__version__} tensors, {where}" if torch else "NumPy arrays"
    used = f"C++ kernels: {kernels.isa()}" if kernels and device == "cpu" else "no C++ kernels"
    if device != "cpu":
        used = "Triton's kernels" if _triton(device) else "no kernels of Triton's"
    return f"{arrays}; {used}; float32, seeded Gaussian gradients"


def _triton(device: str) -> bool:
    from hvd_compress.ops._torch import uses_triton

    return uses_triton(find_torch().device(device))


def print_rows(out: Console, rows: Sequence[Row], workers: int) -> None:
    """Print a table for each size and number of threads."""
    for (n, threads), group in groupby(rows, key=lambda row: (row.n, row.threads)):
        together = list(group)
        copy = median(row.copy.median for row in together)
        host = together[0].device == "cpu"
        where, who = (f", {threads} thread{'s' * (threads > 1)}", "one thread") if host else ("", "the device")
        out.print(f"{n:,} entries{where}; {who} copies them in {digits(1e3 * copy)} ms, {4e-9 * n / copy:.1f} GB/s")
        out.print(_table(together))
        out.print()
    out.print(_NOTE.format(workers=workers, s="s" * (workers > 1)))
    short = min((row.warm_up for row in rows if row.decode), default=WARM_UP_STEPS)
    if short < WARM_UP_STEPS:
        out.print(f"* warmed up by fewer than {WARM_UP_STEPS} steps, but at least {short}.")


def _table(rows: Iterable[Row]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("codec", overflow="fold", max_width=WIDTH)
    for column in ("encode\nms", "+-\n%", "\nGB/s", "x\ncopy", "decode\nms", "+-\n%", "x\ncopy", "\nbytes"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> Iterator[str]:
    few = row.decode is not None and row.warm_up < WARM_UP_STEPS
    yield broken(row.codec) + " *" * few
    yield from _times(row.encode)
    yield f"{4e-9 * row.n / row.encode.median:.2f}"
    yield digits(row.encode.median / row.copy.median)
    if row.decode is not None:
        yield from _times(row.decode)
        yield digits(row.decode.median / row.copy.median)
        yield f"{row.payload_bytes:,}"


def _times(timing: Timing) -> tuple[str, str]:
    return digits(1e3 * timing.median), f"{100 * timing.spread:.0f}"


def broken(config: str) -> str:
    """A config on so many lines that each fits the column."""
    if len(config) <= WIDTH:
        return config
    lines = config.replace(",", ",\n  ").split("\n")
    return "\n".join(line if len(line) <= WIDTH else line.replace(":", ":\n  ", 1) for line in lines)


def digits(value: float) -> str:
    """Three significant digits where there are that many, without an exponent."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}" if value >= 0.001 else f"{value:.4f}"
