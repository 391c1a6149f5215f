"""Drives the measurements: in the job that this process belongs to, or on clusters made for them."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from hvd_compress.bench.exchange_cluster import cluster, run_on_hosts
from hvd_compress.bench.exchange_progress import Reporter, reporting
from hvd_compress.bench.exchange_rows import ROWS_FILE, Row, bits_per_second, config_of_method, load, save
from hvd_compress.codec import Reduction
from hvd_compress.payload import TensorSpec
from hvd_compress.policy import compose_config

__all__ = ["drive", "in_job"]

FASTEST = 5e9
"""Bits per second that links without a limit are taken for in estimates."""


class Case(NamedTuple):
    """What one row is about."""

    hosts: int
    rate: str
    tensors: int
    method: str


def in_job(arguments: argparse.Namespace, rank: int) -> list[Row]:
    """Measure in this rank's job; every rank must call it. Rank 0 writes the rows so far after each case."""
    # Imported here because it needs Horovod, and whoever drives a cluster does not.
    from hvd_compress.bench.exchange import measure

    rows = []
    for tensors, method in itertools.product(arguments.tensors, arguments.methods):
        rows.append(measure(method, arguments.n, tensors, arguments.steps, arguments.rates[0]))
        if rank == 0:
            save(rows, arguments.out / ROWS_FILE)
    return rows


def drive(arguments: argparse.Namespace, scripts: Path) -> list[Row]:
    """Measure on one cluster after the other, with all numbers of hosts and all rates.

    Raises
    ------
    ClusterError
        If a cluster cannot be made or a run on it fails. What was measured until then is in the file of rows.
    """
    networks = list(itertools.product(arguments.hosts, arguments.rates))
    rows: list[Row] = []
    with reporting([_expected_seconds(case, arguments) for case in _cases(arguments)]) as reporter:
        for hosts, rate in networks:
            reporter.begin(f"{hosts} hosts, {rate}")
            rows += _on_network(hosts, rate, arguments, scripts, rows, reporter)
    return rows


def _on_network(
    hosts: int, rate: str, arguments: argparse.Namespace, scripts: Path, before: list[Row], reporter: Reporter
) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, cluster(scripts / "cluster.sh", hosts, rate):
        written = Path(folder) / ROWS_FILE

        def look() -> None:
            for row in (load(written) if written.exists() else [])[len(rows) :]:
                rows.append(row)
                save(before + rows, arguments.out / ROWS_FILE)
                reporter.advance(row)

        run_on_hosts(scripts / "cluster.sh", _command(arguments, scripts, rate, folder), look)
    return rows


def _command(arguments: argparse.Namespace, scripts: Path, rate: str, folder: str) -> list[str]:
    """What each rank runs: this program in its job."""
    settings = {
        "methods": ",".join(arguments.methods),
        "tensors": ",".join(map(str, arguments.tensors)),
        "n": arguments.n,
        "steps": arguments.steps,
        "rates": rate,
        "out": folder,
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    return [sys.executable, str(scripts / "bench_exchange.py"), "--json", *options]


def _cases(arguments: argparse.Namespace) -> list[Case]:
    """Everything, in the order in which it is measured."""
    return list(itertools.starmap(Case, itertools.product(
        arguments.hosts, arguments.rates, arguments.tensors, arguments.methods
    )))  # fmt: skip


def _expected_seconds(case: Case, arguments: argparse.Namespace) -> float:
    """How long a case will take, roughly; the time left is estimated by the shares."""
    config = config_of_method(case.method)
    codec = compose_config("cast" if config == "fp16" else config).codec
    nbytes: int = codec.payload_nbytes(TensorSpec((1, arguments.n), "float32"))
    copies: float = case.hosts - 1 if codec.reduction is Reduction.GATHER else 2 * (case.hosts - 1) / case.hosts
    wire = 8 * nbytes * copies / (bits_per_second(case.rate) or FASTEST)
    # What computing takes is the same share of the time with all methods, as far as one can know beforehand.
    seconds: float = min(3 + 3 * wire, (arguments.steps + 3) * (wire + arguments.n * case.hosts / 1e8))
    return seconds
