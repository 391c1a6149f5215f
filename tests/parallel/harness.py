"""The folder of a launch.

The pytest that a person starts (`outer.py`) and the pytest on each rank (`inner.py`) talk through one folder for each
launch: the plan (which cases, in which order), one outcome for each case and rank, and for each rank its output and,
after a hang or a crash, the stacks of all its threads. Files work however badly a launch ends.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from hvd_compress.launch import Launcher

FOLDER = "HVD_COMPRESS_TEST_FOLDER"
"""Environment variable that every process of a launch carries, and no other process: its launch's folder."""

CASE_SECONDS = 60.0
"""How long a case may take unless it is marked ``watchdog(seconds)``."""

START_SECONDS = 120.0
"""How long ranks may take to start and to collect; seconds are usual, a loaded machine may need more."""

END_SECONDS = 60.0
"""How long a launch may take to end by itself after its last case; a loaded machine has been seen to need over 20."""


class Launch(NamedTuple):
    """How a file's cases are started: by which launcher and on how many ranks."""

    launcher: Launcher
    workers: int

    def __str__(self) -> str:
        return f"{self.launcher}-{self.workers}"


@dataclass(frozen=True)
class Outcome:
    """How one case ended on one rank: ``passed``, ``failed`` or ``skipped``, with what there is to say about it."""

    status: str
    text: str
    seconds: float


@dataclass(frozen=True)
class Folder:
    """The files of one launch."""

    path: Path

    def write_plan(self, launch: Launch, cases: Sequence[str]) -> None:
        """Say which cases (node ids) run in this launch, in this order."""
        self._write("plan.json", {"launch": list(launch), "cases": list(cases)})

    def plan(self) -> tuple[Launch, list[str]]:
        """Return the launch and its cases in order."""
        plan = json.loads((self.path / "plan.json").read_text())
        return Launch(*plan["launch"]), plan["cases"]

    def write_outcome(self, case: int, rank: int, outcome: Outcome) -> None:
        """Say how the case of that number in the plan ended on `rank`."""
        self._write(f"case-{case}-rank-{rank}.json", asdict(outcome))

    def outcome(self, case: int, rank: int) -> Outcome | None:
        """Return how the case ended on `rank`, None while it has not."""
        try:
            return Outcome(**json.loads((self.path / f"case-{case}-rank-{rank}.json").read_text()))
        except FileNotFoundError:
            return None

    def outcomes(self, case: int, workers: int) -> list[Outcome | None]:
        """Return how the case ended on every rank."""
        return [self.outcome(case, rank) for rank in range(workers)]

    def log(self, rank: int) -> str:
        """Return what `rank` has printed."""
        return self.text(f"rank-{rank}.log")

    def stacks_file(self, rank: int) -> Path:
        """Return the file in which `rank` leaves the stacks of all its threads."""
        return self.path / f"rank-{rank}.stacks"

    def stacks(self, rank: int) -> str:
        """Return the stacks that `rank` left, empty if it had no reason to."""
        return self.text(self.stacks_file(rank).name)

    def text(self, name: str) -> str:
        """Return the text of a file, empty if there is none."""
        file = self.path / name
        return file.read_text(errors="replace").strip() if file.exists() else ""

    def _write(self, name: str, content: object) -> None:
        # Others look for the file at any time: it must be whole from the moment that it is there.
        unfinished = self.path / f".{name}"
        unfinished.write_text(json.dumps(content))
        unfinished.replace(self.path / name)


@contextlib.contextmanager
def new_folder() -> Iterator[Folder]:
    """Make a launch's folder for as long as it is needed."""
    path = Path(tempfile.mkdtemp(prefix="hvd-compress-launch-"))
    try:
        yield Folder(path)
    finally:
        shutil.rmtree(path)
