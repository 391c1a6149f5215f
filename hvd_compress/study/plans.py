"""How the trials of a study are run: what is fixed, what is searched for, and how long that goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hvd_compress.study.cells import FINAL, SEARCH, Place

__all__ = ["Grid", "Plan", "Range"]


class Range(NamedTuple):
    """Where a hyper-parameter is searched for: evenly, or evenly in its logarithm."""

    low: float
    high: float
    log: bool = False


class Grid(NamedTuple):
    """Cells: each of the settings of each method, on each model and number of workers."""

    models: tuple[str, ...]
    workers: tuple[int, ...]
    settings: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Plan:
    """One task of a preset.

    Parameters
    ----------
    grids : tuple of Grid
        The cells; one that is in several of them is run once.
    space : mapping of str to Range
        What is searched for: ``learning_rate``, ``dropout``, and ``momentum`` for methods that apply it themselves.
    batch_size : int
        Columns of text or pictures of a step, all workers together.
    looks, search_looks : int
        Most looks at the validation part in a final trial, and in one of the search.
    trials, seeds : int
        Draws of each search, and final trials with the best of them.
    look_steps : int, optional
        Steps between two looks; an epoch by default.
    patience : int
        A trial ends when so many looks in a row were not better than the best.
    start : mapping of str to float
        The first draw; empty where it is random too.
    sampler : str
        Of the other draws: "random" or "tpe", an optuna sampler.
    sequence_length : int
        Words of a column in a step.
    clip : float
        Largest norm of the averaged gradient.
    momentum, weight_decay : float
        Of SGD; momentum not for methods that apply it themselves.
    decay : float
        Share of the steps, at the end, in which the learning rate falls linearly to zero.
    milestones : tuple of float
        Shares of the steps after each of which the learning rate is a tenth.
    limit : int, optional
        Most lines of the text, or pictures to train on.
    """

    grids: tuple[Grid, ...]
    space: Mapping[str, Range]
    batch_size: int
    looks: int
    search_looks: int
    trials: int
    seeds: int
    look_steps: int | None = None
    patience: int = 10
    start: Mapping[str, float] = field(default_factory=dict)
    sampler: str = "tpe"
    sequence_length: int = 35
    clip: float = 0.25
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 0.0
    milestones: tuple[float, ...] = ()
    limit: int | None = None

    def facts(self) -> dict[str, Any]:
        """JSON values that decide what comes out of a trial, whatever the number of trials."""
        free = {"grids", "space", "trials", "seeds", "start", "sampler"}
        values = {name: value for name, value in dataclasses.asdict(self).items() if name not in free}
        return {**values, "milestones": list(self.milestones)}

    def places(self, *phases: str) -> list[Place]:
        """Places of a cell's trials, in order: of all phases, or of those that are named."""
        counts = {SEARCH: self.trials, FINAL: self.seeds}
        return [Place(phase, number) for phase in phases or counts for number in range(counts[phase])]

    def looks_of(self, phase: str) -> int:
        """Most looks of a trial."""
        return self.looks if phase == FINAL else self.search_looks

    def learning_rate_share(self, progress: float) -> float:
        """What the learning rate is multiplied with after a share of the steps, in [0, 1).

        >>> plan = Plan((), {}, batch_size=1, looks=1, search_looks=1, trials=1, seeds=1, decay=0.5)
        >>> [plan.learning_rate_share(progress) for progress in (0.0, 0.5, 0.75)]
        [1.0, 1.0, 0.5]
        """
        falling = min(1.0, (1 - progress) / self.decay) if self.decay else 1.0
        return falling * 0.1 ** sum(progress >= milestone for milestone in self.milestones)
