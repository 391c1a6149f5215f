"""``python -m hvd_compress bench`` without ``--advise``: what is checked, measured and shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hvd_compress.bench.bench_plot import draw_times
from hvd_compress.bench.bench_report import environment, missing, print_rows
from hvd_compress.bench.encode import SIZES, Row, default_configs, measure_rows
from hvd_compress.bench.landmarks import PREFIX
from hvd_compress.bench.machine import find_torch, usable_cores
from hvd_compress.cli.curves import check_plot
from hvd_compress.cli.output import console, print_json
from hvd_compress.cli.progress import tracked
from hvd_compress.cli.tensors import CommandFailed

__all__ = ["run_bench"]


def run_bench(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit status.

    Raises
    ------
    CommandFailed
        If something that was asked for is not here.
    """
    sizes, threads, device = arguments.n or SIZES, arguments.threads or [1], arguments.device
    configs, workers = arguments.codecs or default_configs(device), arguments.workers or 1
    _check(threads, device, configs)
    # Before the work, because what prints tables may be missing.
    out = None if arguments.json else console()
    if arguments.plot:
        check_plot(arguments.plot)
    for note in missing(device):
        print(note, file=sys.stderr)
    rows = _measured(sizes, threads, configs, device, workers, arguments.seconds)
    if arguments.plot:
        draw_times(arguments.plot, rows, environment(device))
    if out is None:
        print_json([row.facts() for row in rows])
    else:
        out.print(environment(device), end="\n\n")
        print_rows(out, rows, workers)
    return 0


def _measured(
    sizes: Sequence[int], threads: Sequence[int], configs: Sequence[str], device: str, workers: int, seconds: float
) -> list[Row]:
    planned = [n for n in sizes for _ in threads for _ in configs]
    rows = measure_rows(sizes, threads, configs, device, workers, seconds)
    # Time goes with the entries, but for that which every row gets.
    weights = [3 * seconds + n / 1e7 for n in planned]
    try:
        return [row for _, row in zip(tracked(planned, "Measuring", weights), rows, strict=False)]
    except (MemoryError, RuntimeError) as error:
        # torch says so by a RuntimeError.
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise CommandFailed(f"not enough memory for {max(sizes):,} entries: choose smaller ones by --n") from error


def _check(threads: Sequence[int], device: str, configs: Sequence[str]) -> None:
    cores = len(usable_cores())
    if max(threads) > cores:
        raise CommandFailed(f"--threads: this process may use {cores} cores, got {max(threads)}", status=2)
    if device == "cpu":
        return
    torch = find_torch()
    if torch is None or not torch.cuda.is_available():
        raise CommandFailed(f"--device: torch sees no {device} device here", status=2)
    if any(config.startswith(f"{PREFIX}:numpy") for config in configs):
        raise CommandFailed(f"{PREFIX}:numpy.partition is for --device cpu, got {device}", status=2)
