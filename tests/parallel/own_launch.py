"""Run a function of a test file in processes of its own, on N ranks: `run` in a test, this module on each rank."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvd_compress.launch import Launcher
from tests.parallel.harness import END_SECONDS, FOLDER, Folder, Launch, new_folder
from tests.parallel.inner import Watchdog, rank_of_process
from tests.parallel.ranks import running_ranks, wait

LAUNCH_SECONDS = 120.0


class LaunchFailed(AssertionError):
    """A rank raised an error or died, or the launch took too long; the text holds what each rank printed."""


def run(
    function: Callable[..., Any],
    *args: Any,
    launcher: Launcher = "mpi",
    workers: int = 2,
    env: Mapping[str, str] | None = None,
    seconds: float = LAUNCH_SECONDS,
) -> list[Any]:
    """Call ``function(*args)`` on every rank of a new launch; return what each rank returned, in rank order.

    The function must stand at the top level of a module, arguments and results must be picklable.

    Raises
    ------
    LaunchFailed
        If a rank raised or died, or the launch was not over after `seconds`.
    """
    with new_folder() as folder:
        (folder.path / "call.pickle").write_bytes(pickle.dumps((seconds, function, args)))
        with running_ranks(Launch(launcher, workers), ["-m", "tests.parallel.own_launch"], folder, env) as process:
            # Ranks end themselves at the limit, with their stacks: what is left then is the launcher's end.
            status = wait(process, seconds + END_SECONDS)
        if status != 0:
            raise LaunchFailed(explain(folder, workers, f"the launch ended with exit status {status}"))
        return [pickle.loads(result_file(folder, rank).read_bytes()) for rank in range(workers)]


def explain(folder: Folder, workers: int, headline: str) -> str:
    """Return what every rank and the launcher have left to read."""
    parts = [headline]
    for rank in range(workers):
        parts += [f"-------- rank {rank} --------", folder.log(rank), folder.stacks(rank)]
    return "\n".join([*parts, "-------- launcher --------", folder.text("launcher.log")])


def result_file(folder: Folder, rank: int) -> Path:
    """Return where `rank` leaves what the function returned."""
    return folder.path / f"rank-{rank}.pickle"


def main() -> None:
    """Call the function on this rank and leave its result."""
    folder = Folder(Path(os.environ[FOLDER]))
    rank = rank_of_process()
    seconds, function, args = pickle.loads((folder.path / "call.pickle").read_bytes())
    Watchdog(folder, rank).start(seconds)
    result_file(folder, rank).write_bytes(pickle.dumps(function(*args)))


if __name__ == "__main__":
    main()
