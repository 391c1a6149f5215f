"""The database of a study: optuna keeps it, in an SQLite file or wherever a URL says.

Each cell is one optuna study. A trial carries its place in the cell from the moment it begins, and its record as JSON
once it has ended. A trial whose process is gone counts as failed: its place is free again, with the same
hyper-parameters. Several machines may work on one database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy.exc import SQLAlchemyError

from hvd_compress.study.cells import Cell
from hvd_compress.study.errors import UsageError
from hvd_compress.study.records import Record
from hvd_compress.study.trials import Trials, records_of

__all__ = ["Database", "load_records", "sqlite_url"]

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
    return [record for study in studies for record in records_of(study).values()]


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
