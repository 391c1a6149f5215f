"""The processes of a launch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hvd_compress.launch import started_workers
from tests.parallel.harness import FOLDER, Folder, Launch

REPOSITORY = Path(__file__).resolve().parents[2]

# Only a shell knows its rank before Python starts, and PYTHONHASHSEED counts from then on: sets must be in another
# order on every rank (F048), the same one in every run. Without `exit` the shell would become the rank, and
# horovodrun ends the children of the shell that it starts, so that a rank must be one to be ended politely.
RANK_SHELL = (
    'rank=${OMPI_COMM_WORLD_RANK:-$HOROVOD_RANK}; export PYTHONHASHSEED=$rank; "$@" >"$0/rank-$rank.log" 2>&1; exit $?'
)


@contextlib.contextmanager
def running_ranks(
    launch: Launch, arguments: Sequence[str], folder: Folder, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start Python with `arguments` on every rank and yield the launcher; on leaving, no process of it is left."""
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {
        FOLDER: str(folder.path),
        "HOROVOD_CYCLE_TIME": "1",
        "OMP_NUM_THREADS": "1",
        # Meant for the pytest that a person starts: each option would apply twice.
        "PYTEST_ADDOPTS": "",
        "PYTEST_DEBUG_TEMPROOT": str(folder.path),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }
    with (
        (folder.path / "launcher.log").open("wb") as log,
        started_workers(
            ["sh", "-c", RANK_SHELL, str(folder.path), sys.executable, *arguments],
            workers=launch.workers,
            launcher=launch.launcher,
            env={**ours, **(env or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as launcher,
    ):
        yield launcher


def wait(launcher: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the launcher's exit status, None if it still runs after `seconds`."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        launcher.wait(seconds)
    return launcher.poll()
