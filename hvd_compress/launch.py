"""Start workers of one program on this machine, and end all of them: the one place that knows the launchers' arguments.

``mpirun`` and ``horovodrun`` of the running Python's own environment are used even where others come first on the path.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Literal, NamedTuple

from hvd_compress import processes

Launcher = Literal["mpi", "gloo"]


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


def started_workers(
    argv: Sequence[str],
    *,
    workers: int,
    launcher: Launcher = "mpi",
    env: Mapping[str, str] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cwd: str | Path | None = None,
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Start `argv` in `workers` processes and give the launcher's process; on leaving, every one of them is ended.

    Parameters and errors are those of `run_workers`.
    """
    command = worker_command(argv, workers=workers, launcher=launcher, env=env)
    return processes.started(command.argv, env=command.env, stdout=stdout, stderr=stderr, cwd=cwd)


def _mpirun(environment: dict[str, str]) -> list[str]:
    """Return how mpirun starts here, and set in `environment` what it would otherwise refuse to start without."""
    # Without an ssh client mpirun stops even where every worker is local; a user's own setting stays.
    if not any(shutil.which(agent, path=environment["PATH"]) for agent in ("ssh", "rsh")):
        environment.setdefault("OMPI_MCA_plm", "isolated")
    # Each worker has Horovod's thread beside its own: one that waits must not keep a core from those that work.
    environment.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
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
