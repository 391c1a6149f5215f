"""``python -m hvd_compress bench --advise``: in a job or outside of one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from hvd_compress.bench.advise import Advice, advise, job_size
from hvd_compress.bench.advise_report import print_advice
from hvd_compress.bench.encode import CODECS
from hvd_compress.bench.link import link_at, measure_link
from hvd_compress.cli.output import console, print_json
from hvd_compress.cli.tensors import CommandFailed
from hvd_compress.study.workers import Workers

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run_advise"]

_CONFIGS = (*CODECS, "qsgd:bits=8")
_ENTRIES = 25_600_000
_HOW = "start it on the ranks of a job, mpirun -np 2 python -m hvd_compress bench --advise, or give --link RATE "


def run_advise(arguments: argparse.Namespace) -> int:
    """Measure, and print on one rank; return the exit status.

    Raises
    ------
    CommandFailed
        If it is not known what to measure.
    """
    if job_size() == 1:
        if arguments.link is None or arguments.workers is None:
            raise CommandFailed(f"--advise needs a network: {_HOW}and --workers W", status=2)
        if arguments.workers < 2:
            raise CommandFailed("--workers: one worker exchanges nothing, give 2 or more", status=2)
        out = None if arguments.json else console()
        _show(out, _advise(arguments, link_at(arguments.link, arguments.workers), arguments.workers, None))
        return 0
    return _run_in_job(arguments)


def _run_in_job(arguments: argparse.Namespace) -> int:
    try:
        import horovod.torch as horovod
    except ImportError as error:
        raise CommandFailed(f"--advise measures a job by horovod.torch: {error}; run scripts/setup.sh") from error
    job = Workers(horovod)
    status = 0
    try:
        out = None if arguments.json else _console()
        _check(arguments, job)
        link = measure_link(horovod, job, 4 * sum(arguments.n or [_ENTRIES]))
        advice = _advise(arguments, link, job.size, job)
        if job.rank == 0:
            _show(out, advice)
    except CommandFailed as error:
        status = error.status
        if job.rank == 0:
            print(f"python -m hvd_compress bench: error: {error}", file=sys.stderr, flush=True)
    # A launcher ends the other ranks when one ends with an error: rank 0 must have printed by then.
    job.barrier()
    return status


def _console() -> Console:
    # Every rank looks whether rich is here, so that all of them end alike.
    console()
    from hvd_compress.study.progress import writes_to_terminal

    return console(writes_to_terminal())


def _check(arguments: argparse.Namespace, job: Workers) -> None:
    if arguments.link is not None:
        raise CommandFailed("--link is for use outside of a job; here the link is measured", status=2)
    if arguments.workers not in (None, job.size):
        raise CommandFailed(f"--workers: this job has {job.size}, got {arguments.workers}", status=2)


def _advise(arguments: argparse.Namespace, link: Any, count: int, job: Workers | None) -> Advice:
    return advise(
        arguments.codecs or _CONFIGS,
        arguments.n or [_ENTRIES],
        link,
        count,
        compute=arguments.compute_ms or 0.0,
        seconds=arguments.seconds,
        job=job,
    )


def _show(out: Any, advice: Advice) -> None:
    if out is None:
        print_json(advice.facts())
    else:
        print_advice(out, advice)
    sys.stdout.flush()
