"""What a study consists of: cells, each with a search of its own, and the trials in them."""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["DIRECTIONS", "FINAL", "SEARCH", "Cell", "Place"]

SEARCH, FINAL = "search", "final"

Direction = Literal["minimize", "maximize"]

DIRECTIONS: dict[str, Direction] = {"lm": "minimize", "vision": "maximize"}
"""What is to happen to a task's score: a perplexity or an accuracy."""


@dataclass(frozen=True)
class Cell:
    """One method at one setting, on one model and number of workers: its hyper-parameters are searched for alone.

    Parameters
    ----------
    preset : str
        "smoke", "laptop" or "paper".
    task : str
        "lm" or "vision".
    model, data : str
        As in :class:`hvd_compress.study.records.Record`.
    workers : int
    method, setting : str
        As in `Record`.
    """

    preset: str
    task: str
    model: str
    data: str
    workers: int
    method: str
    setting: str

    @property
    def name(self) -> str:
        """All that it is, with slashes between; names the optuna study.

        >>> Cell("laptop", "lm", "lstm-small", "kjv", 2, "topk", "0.01").name
        'laptop/lm/lstm-small/kjv/2/topk/0.01'
        """
        return "/".join(map(str, dataclasses.astuple(self)))

    @property
    def direction(self) -> Direction:
        """ "minimize" or "maximize"."""
        return DIRECTIONS[self.task]


class Place(NamedTuple):
    """Where a trial belongs in its cell.

    Parameters
    ----------
    phase : str
        `SEARCH` or `FINAL`.
    number : int
        Of the draw, from 0 on, or of the final seed.
    """

    phase: str
    number: int

    @property
    def seed(self) -> int:
        """Of the training: draws share one, so that they differ in their hyper-parameters only."""
        return 0 if self.phase == SEARCH else 1 + self.number

    def draw_seed(self, cell: Cell) -> int:
        """Of the draw of hyper-parameters: the same for all methods, so that none of them has better luck.

        It does not depend on the draws before it, which may have been made in other sittings.
        """
        shared = cell.preset, cell.task, cell.model, cell.data, cell.workers, *self
        return zlib.crc32("/".join(map(str, shared)).encode())
