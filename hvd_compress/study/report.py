"""Tables and pictures of training runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from hvd_compress.study.results import RunResult

Results = Mapping[str, RunResult]
GIGABIT = 1e9


def table(results: Results) -> Table:
    """One row for each method: what it learned, what it sent and what it cost."""
    columns = (
        "parameters",
        "test\nperplexity",
        "bytes a step\nand worker",
        "ratio, all\ngradients",
        "ratio, those\ncompressed",
        "encode\nms",
        "wait\nms",
        "decode\nms",
        "step\nms",
    )
    grid = Table("method", title="Dense bytes / sent bytes = compression ratio", title_justify="left")
    for column in columns:
        grid.add_column(column, justify="right", vertical="bottom")
    for method, result in results.items():
        traffic, mean = result.traffic, result.milliseconds
        grid.add_row(
            method,
            f"{result.parameters:,}",
            f"{result.test_perplexity:.2f}",
            f"{traffic.sent_bytes:,}",
            f"{traffic.compression_ratio:.1f}",
            f"{traffic.compressed_ratio:.1f}",
            *(f"{value:.1f}" for value in (mean.encode, mean.wait, mean.decode, mean.step)),
        )
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
    for axes in (by_step, by_bytes):
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
