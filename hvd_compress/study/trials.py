"""The trials of one cell in the database: begun, ended, interrupted."""

from __future__ import annotations

import math
import os
import socket
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hvd_compress.study.cells import SEARCH, Cell, Direction, Place
from hvd_compress.study.records import Record

__all__ = ["Running", "Trials", "best_of", "records_of"]

SILENT_SECONDS = 600.0
"""A trial on another machine that has not been heard of for so long is taken for dead."""

UNPLACED_SECONDS = 60.0
"""So is one that has not said where it belongs."""


class Trials:
    """The trials of one cell."""

    def __init__(self, study: optuna.Study, cell: Cell) -> None:
        self._study, self._cell = study, cell

    def finished(self) -> dict[Place, Record]:
        """Records by place."""
        return records_of(self._study)

    def running(self) -> set[Place]:
        """Places of the trials that are under way; those of which nobody is left to finish them fail first."""
        alive = set()
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if "record" in trial.user_attrs:
                # Killed between the two writes of `Running.finish`.
                self._tell(trial, _value(self._cell, Record.from_dict(trial.user_attrs["record"])))
            elif _is_alive(trial):
                alive.add(_place(trial))
            else:
                self._tell(trial, None)
        return alive

    def begin(
        self,
        place: Place,
        space: Mapping[str, BaseDistribution],
        sampler: BaseSampler,
        fixed: Mapping[str, float] | None = None,
    ) -> Running | None:
        """Begin a trial; None if another machine was faster.

        Parameters
        ----------
        place : Place
            One that is neither finished nor running.
        space : mapping
            Distribution of each hyper-parameter.
        sampler : BaseSampler
            What draws them, unless a trial at this place was interrupted: it begins again.
        fixed : mapping, optional
            Hyper-parameters that are not to be drawn.
        """
        self._study.sampler = _fixed(self._interrupted(place) or fixed or {}, sampler)
        trial = self._study.ask(dict(space))
        trial.set_user_attr("place", list(place))
        running = Running(self._study, self._cell, trial)
        running.beat()
        if any(other.number < trial.number for other in self._same(place, trial.params)):
            self._study.tell(trial.number, state=TrialState.FAIL)
            return None
        return running

    def _same(self, place: Place, parameters: Mapping[str, float]) -> list[FrozenTrial]:
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.COMPLETE))
        # A final trial may have to be made again when the search has gone on.
        any_parameters = place.phase == SEARCH
        return [trial for trial in trials if _place(trial) == place and (any_parameters or trial.params == parameters)]

    def _interrupted(self, place: Place) -> dict[str, float] | None:
        failed = self._study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
        same = [trial.params for trial in failed if _place(trial) == place and trial.params]
        return same[-1] if same else None

    def _tell(self, trial: FrozenTrial, value: float | None) -> None:
        state = TrialState.FAIL if value is None else None
        self._study.tell(trial.number, value, state=state, skip_if_finished=True)


class Running:
    """A trial that is under way in this process.

    Attributes
    ----------
    parameters : dict of str to float
        Its hyper-parameters.
    """

    def __init__(self, study: optuna.Study, cell: Cell, trial: optuna.Trial) -> None:
        self._study, self._cell, self._trial = study, cell, trial
        self.parameters: dict[str, float] = dict(trial.params)

    def beat(self) -> None:
        """Tell other machines that the trial is alive."""
        self._trial.set_user_attr("owner", {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()})

    def finish(self, record: Record) -> None:
        """Keep what came of it."""
        self._trial.set_user_attr("record", record.as_dict())
        self._study.tell(self._trial, _value(self._cell, record))


def best_of(direction: Direction, records: Iterable[Record]) -> Record | None:
    """The record of a search with the best validation score, the first of equal ones; None if all have diverged."""
    scored = [record for record in records if record.phase == SEARCH and not math.isnan(record.validation_score)]
    sign = 1 if direction == "maximize" else -1
    return max(scored, key=lambda record: sign * record.validation_score, default=None)


def records_of(study: optuna.Study) -> dict[Place, Record]:
    """By place; without final trials of what is no longer the best."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    records = {_place(trial): Record.from_dict(trial.user_attrs["record"]) for trial in trials}
    best = best_of("maximize" if study.direction == StudyDirection.MAXIMIZE else "minimize", records.values())
    return {
        place: record
        for place, record in records.items()
        if place.phase == SEARCH or (best is not None and record.parameters == best.parameters)
    }


def _place(trial: FrozenTrial) -> Place:
    # A process may have been killed before it said where its trial belongs.
    return Place(*trial.user_attrs.get("place", ("", -1)))


def _value(cell: Cell, record: Record) -> float:
    """What optuna is told: optuna takes no NaN, and a run that diverged is the worst."""
    score = record.validation_score
    worst = math.inf if cell.direction == "minimize" else -math.inf
    return worst if math.isnan(score) else score


def _is_alive(trial: FrozenTrial) -> bool:
    owner = trial.user_attrs.get("owner")
    if owner is None:
        begun = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        return time.time() - begun < UNPLACED_SECONDS
    here = owner["host"] == socket.gethostname()
    return time.time() - owner["time"] < SILENT_SECONDS and not (here and _is_gone(owner["pid"]))


def _is_gone(pid: int) -> bool:
    try:
        # A process that has ended and that nobody has asked for its status is still listed, without a command line.
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def _fixed(parameters: Mapping[str, float], sampler: BaseSampler) -> BaseSampler:
    if not parameters:
        return sampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return PartialFixedSampler(dict(parameters), sampler)
