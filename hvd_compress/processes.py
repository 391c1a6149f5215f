"""Start a program of which no descendant outlives the block that it runs in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

MARK = "HVD_COMPRESS_LAUNCH"
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.05


@contextlib.contextmanager
def started(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cwd: str | Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `argv` and yield its process; on leaving, for whatever reason, it and all that it started is ended.

    `env` is the whole environment; the parameters are otherwise those of `subprocess.Popen`.
    """
    mark = uuid.uuid4().hex
    with (
        termination_unwinds(),
        subprocess.Popen(
            argv,
            env={**env, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            # Ctrl-C must reach this process alone: it ends the others in order, and they do not print tracebacks.
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            _end(mark)


def _end(mark: str) -> None:
    """End every process whose environment carries `mark`: first asked, and after `GRACE_SECONDS` forced.

    Launchers put their workers into process groups and sessions of their own, and a dead launcher's workers get another
    parent; the environment is what all descendants share.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    asked: set[int] = set()
    while running := _marked(mark):
        forced = time.monotonic() > deadline
        for pid in running:
            if forced or pid not in asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if forced else signal.SIGTERM)
                asked.add(pid)
        time.sleep(POLL_SECONDS)


def _marked(mark: str) -> list[int]:
    entry = f"{MARK}={mark}".encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        # A process of another user, one that just ended, or a zombie has nothing to read.
        with contextlib.suppress(OSError):
            if entry in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return pids


@contextlib.contextmanager
def termination_unwinds() -> Iterator[None]:
    """Turn SIGTERM into SystemExit inside the block, so that ``finally`` runs; leave a caller's own handler alone."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
