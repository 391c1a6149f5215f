"""Start workers of one program on this machine, and end all of them: the one place that knows the launchers' arguments.

``mpirun`` and ``horovodrun`` of the running Python's own environment are used even where others come first on the path.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Literal, NamedTuple

Launcher = Literal["mpi", "gloo"]

MARK = "HVD_COMPRESS_LAUNCH"
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.05


class LaunchError(RuntimeError):
    """Workers cannot be started on this machine; the message is one sentence that says what to do."""


class Command(NamedTuple):
    """What starts the workers: the launcher's arguments, and the whole environment to start it in."""

    argv: list[str]
    env: dict[str, str]


def worker_command(
    argv: Sequence[str], *, workers: int, launcher: Launcher = "mpi", env: Mapping[str, str] | None = None
) -> Command:
    """Return the command that runs `argv` in `workers` processes on this machine.

    Parameters
    ----------
    argv
        The program of each worker and its arguments, such as ``[sys.executable, "train.py"]``.
    workers
        The number of processes, at least 1.
    launcher
        ``"mpi"`` (``mpirun``) or ``"gloo"`` (``horovodrun --gloo``).
    env
        Variables that are set on top of this process's own environment.

    Raises
    ------
    LaunchError
        Horovod or the launcher is not installed, or, with Gloo, this machine's host name does not resolve.
    ValueError
        `workers` is less than 1 or `launcher` is none of the two.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if launcher not in ("mpi", "gloo"):
        raise ValueError(f"launcher must be 'mpi' or 'gloo', not {launcher!r}")
    if importlib.util.find_spec("horovod") is None:
        raise LaunchError(f"Horovod is not installed for {sys.executable}: run bash scripts/setup.sh, which builds it.")
    environment = {**os.environ, **(env or {})}
    # horovodrun and the workers look up programs by name.
    environment["PATH"] = os.pathsep.join([str(_scripts()), environment.get("PATH", os.defpath)])
    # One worker per core is the rule here: with torch's own default each would start a thread for every core.
    environment.setdefault("OMP_NUM_THREADS", "1")
    if launcher == "gloo":
        _require_own_name()
        return Command([_program("horovodrun"), "-np", str(workers), "--gloo", *argv], environment)
    return Command([*_mpirun(environment), "-np", str(workers), *argv], environment)


def run_workers(
    argv: Sequence[str],
    *,
    workers: int,
    launcher: Launcher = "mpi",
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cwd: str | Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run `argv` in `workers` processes, wait for the end, and leave no process behind, whatever happened.

    `timeout` is in seconds; the other parameters are those of `worker_command` and `subprocess.run`.

    Raises
    ------
    subprocess.TimeoutExpired
        The workers took longer than `timeout`; all of them have been ended.
    LaunchError, ValueError
        As `worker_command`.
    """
    with started_workers(
        argv, workers=workers, launcher=launcher, env=env, stdout=stdout, stderr=stderr, cwd=cwd
    ) as process:
        out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextlib.contextmanager
def started_workers(
    argv: Sequence[str],
    *,
    workers: int,
    launcher: Launcher = "mpi",
    env: Mapping[str, str] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cwd: str | Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `argv` in `workers` processes and yield the launcher's process; on leaving, every one of them is ended.

    Parameters and errors are those of `run_workers`.
    """
    command = worker_command(argv, workers=workers, launcher=launcher, env=env)
    mark = uuid.uuid4().hex
    with (
        _termination_unwinds(),
        subprocess.Popen(
            command.argv,
            env={**command.env, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            # Ctrl-C must reach this process alone: it ends the workers in order, and they do not print tracebacks.
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            end_launch(mark)


def end_launch(mark: str) -> None:
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
def _termination_unwinds() -> Iterator[None]:
    """Turn SIGTERM into SystemExit while workers run, so that ``finally`` ends them; leave a caller's handler alone."""

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


def _mpirun(environment: dict[str, str]) -> list[str]:
    """Return how mpirun starts here, and set in `environment` what it would otherwise refuse to start without."""
    # Without an ssh client mpirun stops even where every worker is local; a user's own setting stays.
    if not any(shutil.which(agent, path=environment["PATH"]) for agent in ("ssh", "rsh")):
        environment.setdefault("OMPI_MCA_plm", "isolated")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # Binding each worker to a core would pin two launches at the same time to the same core.
    return [_program("mpirun"), *root, "--oversubscribe", "--bind-to", "none"]


def _scripts() -> Path:
    return Path(sys.prefix) / "bin"


def _program(name: str) -> str:
    found = shutil.which(name, path=str(_scripts())) or shutil.which(name)
    if found is None:
        raise LaunchError(f"There is no {name} in {_scripts()} or on the path: run bash scripts/setup.sh.")
    return found


def _require_own_name() -> None:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        # Gloo's own answer to this is a segmentation fault.
        raise LaunchError(
            f"Gloo needs this machine's host name to resolve, and {name!r} does not: add the line '127.0.1.1 {name}' "
            "to /etc/hosts, or launch with MPI."
        ) from error
