"""The advice as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_compress.bench.advise import Advice
from hvd_compress.bench.bench_report import WIDTH, broken, digits

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_advice"]

_NOTE = (
    "exchange: encode + wire + decode. step: computing ({compute}), then the exchange. overlap: the same, with the "
    "network working all the while that gradients are computed. faster, slower: than dense, in both; depends: in one "
    "of them. dense and fp16 are Horovod's own."
)


def print_advice(out: Console, advice: Advice) -> None:
    """Print what was measured and what follows."""
    from rich.table import Table

    out.print(_headline(advice), end="\n\n")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("codec", overflow="fold", max_width=WIDTH)
    columns = "payload\nMB", "encode\nms", "wire\nms", "decode\nms", "ex-\nchange", "step\nms", "over-\nlap"
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("\nverdict", no_wrap=True)
    for estimate in advice.estimates:
        cost = estimate.cost
        times = cost.encode, cost.wire, cost.decode, cost.exchange, estimate.step, estimate.step_overlapped
        cells = [digits(1e3 * time) for time in times]
        table.add_row(broken(cost.codec), digits(1e-6 * cost.payload_bytes), *cells, estimate.verdict)
    out.print(table)
    compute = f"{digits(1e3 * advice.compute)} ms" if advice.compute else "0 ms: none was given"
    out.print(f"\n{_NOTE.format(compute=compute)}")


def _headline(advice: Advice) -> str:
    entries, tensors = sum(advice.sizes), len(advice.sizes)
    how = "measured here" if advice.measured else "as given: nothing was sent"
    lines = [f"{advice.workers} workers, {entries:,} entries in {tensors} tensor{'s' * (tensors > 1)}; link {how}"]
    for name, line in advice.link._asdict().items():
        rate = f"{1e-6 / line.per_byte:,.0f} MB/s" if line.per_byte else "no limit seen"
        lines.append(f"  {name:<15} {digits(1e3 * line.latency):>6} ms + bytes of a rank at {rate}")
    return "\n".join(lines)
