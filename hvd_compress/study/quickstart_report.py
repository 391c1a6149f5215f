"""Tables and pictures of training runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from rich.table import Table

from hvd_compress.study.results import RunResult

Results = Mapping[str, RunResult]
GIGABIT = 1e9


def table(results: Results) -> Table:
    """One column for each method: what it learned, what it sent and what that cost."""
    rows: dict[str, Callable[[RunResult], str]] = {
        "parameters": lambda run: f"{run.parameters:,}",
        "test perplexity": lambda run: f"{run.test_perplexity:.2f}",
        "bytes a step and worker": lambda run: f"{run.traffic.sent_bytes:,}",
        "compression ratio, all gradients": lambda run: f"{run.traffic.compression_ratio:.1f}",
        "compression ratio, compressed gradients": lambda run: f"{run.traffic.compressed_ratio:.1f}",
        "encode ms": lambda run: f"{run.milliseconds.encode:.1f}",
        "wait ms": lambda run: f"{run.milliseconds.wait:.1f}",
        "decode ms": lambda run: f"{run.milliseconds.decode:.1f}",
        "step ms": lambda run: f"{run.milliseconds.step:.1f}",
    }
    grid = Table("method")
    for method in results:
        grid.add_column(method, justify="right")
    for name, value in rows.items():
        grid.add_row(name, *(value(result) for result in results.values()))
    return grid


def network_note(results: Results) -> str:
    """What a step would take if a link of 1 Gbit/s were the bottleneck, which on one machine it is not."""
    times = {
        method: result.milliseconds.at_bandwidth(result.traffic.wire_bytes(result.workers), GIGABIT)
        for method, result in results.items()
    }
    return (
        "On one machine the network is not the bottleneck. Between machines at 1 Gbit/s a step would take "
        + ", ".join(f"{value:.0f} ms with {method}" for method, value in times.items())
        + " (the measured step less its wait, plus bytes on the wire: 2(W-1)/W x the all-reduced, "
        "(W-1) x the gathered, for W workers)."
    )


def picture(results: Results, path: Path) -> Path:
    """Draw validation perplexity against steps and against bytes sent, and write it as PNG."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_step, by_bytes = figure.subplots(1, 2, sharey=True)
    for method, result in results.items():
        perplexity = [point.validation_perplexity for point in result.curve]
        by_step.plot([point.step for point in result.curve], perplexity, marker=".", label=method)
        sent = [point.sent_bytes / 1e6 for point in result.curve]
        by_bytes.plot(sent, perplexity, marker=".", label=method)
    by_step.set(xlabel="steps", ylabel="validation perplexity", yscale="log")
    by_bytes.set(xlabel="megabytes sent by each worker", xscale="log")
    by_bytes.xaxis.set_major_formatter(LogFormatter())
    by_step.yaxis.set_major_formatter(LogFormatter())
    by_step.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    for axes in (by_step, by_bytes):
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
