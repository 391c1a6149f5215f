"""The database of a study: optuna keeps it, in an SQLite file or wherever a URL says.

Each cell is one optuna study. A trial carries its place in the cell from the moment it begins, and its record as JSON
once it has ended. A trial whose process is gone counts as failed: its place is free again, with the same
hyper-parameters. Several machines may work on one database.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from hvd_compress.study.cells import Cell, Place
from hvd_compress.study.errors import UsageError
from hvd_compress.study.records import Record

__all__ = ["Database", "Running", "Trials", "load_records", "sqlite_url"]

SILENT_SECONDS = 600.0
"""A trial on another machine that has not been heard of for so long is taken for dead."""

LOCKED_SECONDS = 60.0
"""How long to wait for another process that writes into the SQLite file."""

SQLITE = "sqlite:///"


def sqlite_url(path: Path) -> str:
    """The storage URL of an SQLite file."""
    return f"{SQLITE}{path.absolute()}"


def load_records(url: str, preset: str | None = None) -> list[Record]:
    """Records of all trials that have ended, in the order of cells and trials.

    Parameters
    ----------
    url : str
        Storage URL, such as from `sqlite_url`.
    preset : str, optional
        Of the cells; all by default.

    Raises
    ------
    UsageError
        There is no such database, or it cannot be read.
    """
    if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists():
        raise UsageError(f"there is no database {url.removeprefix(SQLITE)}; run the study first")
    storage = _storage(url)
    names = optuna.get_all_study_names(storage)
    cells = [name for name in names if preset is None or name.startswith(f"{preset}/")]
    studies = (optuna.load_study(study_name=name, storage=storage) for name in cells)
    return [record for study in studies for record in _records(study).values()]


class Database:
    """All cells of a study.

    Parameters
    ----------
    url : str
        Storage URL; what it names is made if it is not there.

    Raises
    ------
    UsageError
        It cannot be opened.
    """

    def __init__(self, url: str) -> None:
        self._storage = _storage(url)

    def trials(self, cell: Cell, facts: Mapping[str, Any]) -> Trials:
        """The trials of a cell.

        Parameters
        ----------
        cell : Cell
        facts : mapping
            JSON values that decide what comes out beside the cell itself, such as the number of steps.

        Raises
        ------
        UsageError
            The database has trials of that cell under other facts.
        """
        study = optuna.create_study(
            study_name=cell.name, storage=self._storage, direction=cell.direction, load_if_exists=True
        )
        kept = study.user_attrs.get("facts")
        if kept is None:
            study.set_user_attr("facts", dict(facts))
        elif kept != dict(facts):
            differing = [name for name in facts if kept.get(name) != facts[name]]
            raise UsageError(
                f"the database has trials of {cell.name} with "
                + ", ".join(f"{name} {kept.get(name)} (now {facts[name]})" for name in differing)
                + "; take another --out or --storage"
            )
        return Trials(study, cell)


class Trials:
    """The trials of one cell."""

    def __init__(self, study: optuna.Study, cell: Cell) -> None:
        self._study, self._cell = study, cell

    def finished(self) -> dict[Place, Record]:
        """Records by place."""
        return _records(self._study)

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
        others = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.COMPLETE))
        if any(_place(other) == place and other.number < trial.number for other in others):
            self._study.tell(trial.number, state=TrialState.FAIL)
            return None
        return running

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


def _storage(url: str) -> optuna.storages.RDBStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    arguments = {"connect_args": {"timeout": LOCKED_SECONDS}} if url.startswith(SQLITE) else {}
    with _said_in_one_sentence(url):
        return optuna.storages.RDBStorage(url, engine_kwargs=arguments)


@contextmanager
def _said_in_one_sentence(url: str) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"cannot open the storage {url}: {reason}; give a URL such as sqlite:///study.db") from error


def _records(study: optuna.Study) -> dict[Place, Record]:
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return {_place(trial): Record.from_dict(trial.user_attrs["record"]) for trial in trials}


def _place(trial: FrozenTrial) -> Place:
    # A process may have been killed before it said where its trial belongs.
    return Place(*trial.user_attrs.get("place", ("", -1)))


def _value(cell: Cell, record: Record) -> float:
    """What optuna is told: optuna takes no NaN, and a run that diverged is the worst."""
    score = record.validation_score
    if score == score:
        return score
    return float("inf") if cell.direction == "minimize" else float("-inf")


def _is_alive(trial: FrozenTrial) -> bool:
    owner = trial.user_attrs.get("owner")
    if owner is None:
        begun = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        return time.time() - begun < LOCKED_SECONDS
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
