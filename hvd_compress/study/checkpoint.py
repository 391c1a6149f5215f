"""Checkpoints of a job: a file of its own for each rank, because each rank's residuals and hidden state are its own.

Rank 0's file also holds what is common to all. A rank removes its older file only after all have written the new one,
so that an interruption at any moment leaves one step that is complete on every rank. Nothing needs a shared disk.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hvd_compress.study.errors import UsageError
from hvd_compress.study.learner import Learner
from hvd_compress.study.workers import Workers


class Checkpoints:
    """The checkpoints of one rank.

    Parameters
    ----------
    directory : Path
        Of all ranks, or of this one alone.
    workers : Workers
        The ranks that save and load together.
    kind : type of Learner
        What knows how to write the files.
    """

    def __init__(self, directory: Path, workers: Workers, kind: type[Learner]) -> None:
        self._directory, self._workers, self._kind = directory, workers, kind

    def _path(self, step: int) -> Path:
        return self._directory / f"step-{step:08d}-rank-{self._workers.rank}.{self._kind.suffix}"

    def _steps(self) -> list[int]:
        pattern = re.compile(rf"step-(\d+)-rank-{self._workers.rank}\.{self._kind.suffix}")
        names = (pattern.fullmatch(path.name) for path in self._directory.iterdir())
        return sorted(int(found[1]) for found in names if found)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write this rank's state after ``step`` steps and drop its older ones; every rank calls it."""
        path = self._path(step)
        unfinished = path.with_name(f"{path.name}.tmp")
        with unfinished.open("wb") as file:
            self._kind.write(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        self._workers.barrier()
        for old in self._steps():
            if old != step:
                self._path(old).unlink()

    def load(self) -> dict[str, Any]:
        """This rank's state of the last step that every rank has; every rank calls it.

        Raises
        ------
        UsageError
            There is no such step; the same sentence on all ranks.
        """
        everyone = self._workers.gather(self._steps(), "checkpoint")
        common = set(everyone[0]).intersection(*everyone)
        if not common:
            raise UsageError(
                f"no checkpoint of {self._workers.size} workers in {self._directory}; start without --resume, or with "
                "as many workers as wrote it"
            )
        return self._kind.read(self._path(max(common)))
