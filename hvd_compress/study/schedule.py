"""What a job trains next: first the search of a cell, then the best of it with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler

from hvd_compress.study.cells import FINAL, SEARCH, Cell, Place
from hvd_compress.study.database import Database
from hvd_compress.study.methods import searches_momentum
from hvd_compress.study.plans import Plan, Range
from hvd_compress.study.records import Record
from hvd_compress.study.trials import Running, Trials, best_of

__all__ = ["Assignment", "Schedule", "is_done", "search_space"]

RANDOM_DRAWS = 3
"""Draws, the start included, before those that look at what came of the others."""


class Assignment(NamedTuple):
    """A trial for all ranks; None in place of a trial where there is only something to wait for."""

    cell: Cell | None = None
    place: Place = Place("", 0)
    parameters: Mapping[str, float] | None = None


class Schedule:
    """Draws the trials of a job one by one; rank 0 alone has it.

    Parameters
    ----------
    cells : sequence of Cell
        In the order in which they are worked through.
    plan : Plan
    database : Database
    facts : mapping
        As for `Database.trials`.

    Raises
    ------
    UsageError
        The database has other trials of these cells.
    """

    def __init__(self, cells: Sequence[Cell], plan: Plan, database: Database, facts: Mapping[str, Any]) -> None:
        self._plan = plan
        self._open = {cell: database.trials(cell, facts) for cell in cells}
        self.running: Running | None = None

    def next(self) -> Assignment | None:
        """The next trial, which then is `running`; None when all is done.

        It is an assignment without a cell while all that is left is under way on other machines.
        """
        for cell, trials in list(self._open.items()):
            assignment = self._next_in(cell, trials)
            if assignment is None:
                del self._open[cell]
            elif assignment.cell:
                return assignment
        return Assignment() if self._open else None

    def _next_in(self, cell: Cell, trials: Trials) -> Assignment | None:
        running, finished = trials.running(), trials.finished()
        for places in (self._plan.places(SEARCH), self._plan.places(FINAL)):
            free = [place for place in places if place not in finished and place not in running]
            fixed = self._fixed(cell, free[0], finished) if free else None
            if free and fixed is None:
                return None
            if free:
                return self._begin(cell, trials, free[0], fixed or {})
            if running.intersection(places):
                return Assignment()
        return None

    def _begin(self, cell: Cell, trials: Trials, place: Place, fixed: Mapping[str, float]) -> Assignment:
        space = {
            name: FloatDistribution(of.low, of.high, log=of.log) for name, of in search_space(self._plan, cell).items()
        }
        self.running = trials.begin(place, space, self._sampler(place.draw_seed(cell)), fixed)
        return Assignment(cell, place, self.running.parameters) if self.running else Assignment()

    def _fixed(self, cell: Cell, place: Place, finished: Mapping[Place, Record]) -> Mapping[str, float] | None:
        """Hyper-parameters that are not drawn; None where no draw of the search has come to anything."""
        if place.phase == FINAL:
            best = best_of(cell.direction, finished.values())
            return best.parameters if best else None
        space = search_space(self._plan, cell)
        return {name: value for name, value in self._plan.start.items() if name in space} if place.number == 0 else {}

    def _sampler(self, seed: int) -> BaseSampler:
        if self._plan.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_DRAWS)


def search_space(plan: Plan, cell: Cell) -> dict[str, Range]:
    """Where the hyper-parameters of a cell are searched for.

    The learning rate is where it is without compression even for signs, which by themselves would need some 1e-4 to
    1e-2 (`Codec.keeps_scale` is false): what the optimizer gets is limited to a norm of ``plan.clip``, to which n
    signs, of norm sqrt(n), are always scaled down. A rate of 20 and a norm of 0.25 are 5e-3 for each of a million. In
    trials of the laptop preset's search, with one worker, signSGD comes to a perplexity of 418 at 60, 435 at 20, 597 at
    2 and 8388 at 0.2, and on the digits to 99 % at 0.4 and 0.1, 97 % at 0.01 and 59 % at 0.001.
    """
    space = {name: of for name, of in plan.space.items() if name != "momentum"}
    if searches_momentum(cell.method, cell.setting):
        space["momentum"] = plan.space["momentum"]
    return space


def is_done(cell: Cell, plan: Plan, trials: Trials) -> bool:
    """Whether nothing of a cell is left to be trained."""
    finished = trials.finished()
    needed = plan.places() if best_of(cell.direction, finished.values()) else plan.places(SEARCH)
    return all(place in finished for place in needed)
