"""What ``scripts/bench_exchange.py`` does: measure, or read rows, and show them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hvd_compress.bench.exchange_arguments import parse, parser
from hvd_compress.bench.exchange_cluster import ClusterError
from hvd_compress.bench.exchange_rows import ROWS_FILE, Row, as_json, load
from hvd_compress.bench.exchange_runs import drive, in_job
from hvd_compress.study.errors import UsageError
from hvd_compress.study.workers import WRONG_USAGE, Workers, run_on_all_ranks

__all__ = ["main"]

LAUNCHED = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK")
"""Environment variables, one of which every launcher gives to its ranks."""


def main(scripts: Path, argv: Sequence[str] | None = None) -> int:
    """Measure exchanges and show them; returns the exit status.

    Parameters
    ----------
    scripts : Path
        Folder of ``cluster.sh`` and ``bench_exchange.py``.
    argv : sequence of str, optional
        Arguments; the process's own by default.
    """
    if {"-h", "--help"} & set(sys.argv[1:] if argv is None else argv):
        parser().parse_args(["--help"])
    try:
        if any(name in os.environ for name in LAUNCHED):
            import horovod.torch as hvd

            return run_on_all_ranks(lambda: _job(argv, Workers(hvd)), hvd)
        _alone(parse(argv, job=False), scripts)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_USAGE
    except (ClusterError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the hosts have been taken down", file=sys.stderr)
        return 130
    return 0


def _job(argv: Sequence[str] | None, workers: Workers) -> None:
    arguments = parse(argv, job=True)
    if workers.size == 1:
        raise UsageError("one rank has nobody to exchange gradients with: start at least two")
    rows = in_job(arguments, workers.rank)
    if workers.rank == 0:
        _show(rows, arguments)


def _alone(arguments: argparse.Namespace, scripts: Path) -> None:
    if arguments.source is None:
        _show(drive(arguments, scripts), arguments)
        return
    try:
        rows = load(arguments.source)
    except (OSError, ValueError) as error:
        raise UsageError(f"--from must be a file of rows: {error}") from error
    _show(rows, arguments)


def _show(rows: Sequence[Row], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(as_json(rows))
        return
    # Matplotlib takes long to import, and the ranks of a cluster print JSON.
    from hvd_compress.bench.exchange_report import break_even_text, picture, table

    grid = table(rows)
    # Lines of a table in a file are not to be broken at 80 characters.
    Console(width=None if sys.stdout.isatty() else 120).print(grid)
    print(break_even_text(rows))
    if arguments.source is None:
        print(f"Rows: {arguments.out / ROWS_FILE}")
    print(f"Picture: {picture(rows, arguments.out / 'speedup.png')}")
