"""Hosts on this machine to measure on: ``scripts/cluster.sh`` as a block of Python."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hvd_compress import processes

__all__ = ["ClusterError", "cluster", "run_on_hosts"]

POLL_SECONDS = 0.2


class ClusterError(RuntimeError):
    """Hosts could not be made, or a run on them failed; the text says why."""


@contextlib.contextmanager
def cluster(script: Path, hosts: int, rate: str) -> Iterator[None]:
    """Make hosts for the length of a block; they are taken down however it ends.

    Raises
    ------
    ClusterError
        If this machine does not let us make them.
    """
    with processes.termination_unwinds():
        _up(script, hosts, rate)
        try:
            yield
        finally:
            _down(script)


def run_on_hosts(script: Path, argv: Sequence[str], meanwhile: Callable[[], None]) -> None:
    """Run a program on all hosts to its end, and call `meanwhile` now and then; every process of it is ended.

    Raises
    ------
    ClusterError
        If it fails; the text is the end of what it said.
    """
    with tempfile.TemporaryFile() as said:
        command = ["bash", str(script), "run", *argv]
        with processes.started(command, env=_environment(), stdout=subprocess.DEVNULL, stderr=said) as process:
            while process.poll() is None:
                meanwhile()
                time.sleep(POLL_SECONDS)
        meanwhile()
        if process.returncode:
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
            raise ClusterError(f"{text}\nthe run on the hosts ended with status {process.returncode}")


def _environment() -> dict[str, str]:
    # The hosts' mpirun must be the one of this Python.
    return {**os.environ, "VIRTUAL_ENV": sys.prefix, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def _up(script: Path, hosts: int, rate: str) -> None:
    command = ["bash", str(script), "up", "--hosts", str(hosts), "--rate", rate]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            _, said = process.communicate()
        except BaseException:
            # It takes down what it has made, if it is asked and not forced.
            process.terminate()
            raise
    if process.returncode:
        raise ClusterError(said.decode().strip() or f"{script.name} up ended with status {process.returncode}")


def _down(script: Path) -> None:
    # A second Ctrl-C must not leave half of the hosts.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        subprocess.run(["bash", str(script), "down"], check=True, start_new_session=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
