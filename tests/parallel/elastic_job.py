"""An elastic job on this machine, whose hosts come and go as a test says."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvd_compress.launch import started_workers
from tests.parallel.ranks import REPOSITORY, wait

FIRST, SECOND, THIRD = "localhost", "127.0.0.1", "127.1"
"""Names of this machine, which Horovod takes for hosts: it gives up the whole host of a worker that died."""

LIMIT_SECONDS = 300.0
"""How long a job may take; 30 are usual, a loaded machine needs more."""

POLL_SECONDS = 0.05

# Without `exit` the shell would become the worker, and Horovod ends the children of the shell that it starts.
SHELL = '"$@"; exit $?'

Line = dict[str, Any]


class Job:
    """A job, and what its workers have written so far."""

    def __init__(self, folder: Path, slots: int) -> None:
        self._folder = folder
        self._slots = slots
        self._deadline = time.monotonic() + LIMIT_SECONDS
        self.launcher: subprocess.Popen[bytes] | None = None

    def offer(self, *hosts: str) -> None:
        """Have the job use these hosts from the next time on that Horovod looks."""
        unfinished = self._folder / ".hosts"
        unfinished.write_text("".join(f"{host}:{self._slots}\n" for host in hosts))
        unfinished.replace(self._folder / "hosts")

    def lines(self, kind: str) -> list[Line]:
        """Return what the workers have written of a kind, by time."""
        texts = [file.read_text() for file in self._folder.glob("worker-*.jsonl")]
        whole = [line for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]
        lines = [line for line in map(json.loads, whole) if line["kind"] == kind]
        return sorted(lines, key=lambda line: float(line["time"]))

    def until(self, done: Callable[[], bool]) -> None:
        """Wait for something that the workers are to write."""
        while not done():
            assert self.launcher is not None
            running = self.launcher.poll() is None and time.monotonic() < self._deadline
            assert running, f"the job has not come so far\n{self.said()}"
            time.sleep(POLL_SECONDS)

    def status(self) -> int | None:
        """Wait for the end and return the exit status; None if there is no end in time."""
        assert self.launcher is not None
        return wait(self.launcher, self._deadline - time.monotonic())

    def said(self) -> str:
        """Return the last of what the launcher and the workers have printed."""
        return (self._folder / "launcher.log").read_text(errors="replace")[-8_000:]


@contextmanager
def started(folder: Path, module: str, arguments: Sequence[str] = (), slots: int = 2) -> Iterator[Job]:
    """Start a module with the folder and these arguments on two hosts; on leaving, no process of it is left."""
    job = Job(folder, slots)
    job.offer(FIRST, SECOND)
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat '{folder / 'hosts'}'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    elastic = ["--min-np", "2", "--elastic-timeout", "60", "--host-discovery-script", str(script)]
    worker = [sys.executable, "-m", module, str(folder), *arguments]
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {"HOROVOD_CYCLE_TIME": "1", "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    with (
        (folder / "launcher.log").open("wb") as log,
        started_workers(
            [*elastic, "sh", "-c", SHELL, "worker", *worker],
            workers=2 * slots,
            launcher="gloo",
            env={**env, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as job.launcher,
    ):
        yield job
