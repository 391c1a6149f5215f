"""What a person asks a study for, and the cells, trials and data that this comes to."""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_compress.study.cells import Cell
from hvd_compress.study.data import Corpus, load_corpus
from hvd_compress.study.errors import UsageError
from hvd_compress.study.images import Images, load_images
from hvd_compress.study.plans import Plan
from hvd_compress.study.presets import MODELS, PRESETS

__all__ = ["Options", "checksum"]


@dataclass(frozen=True)
class Options:
    """A study, the same for the program that a person starts and for its workers.

    Parameters
    ----------
    task : str
        "lm" or "vision".
    preset : str
        A name of `PRESETS`.
    storage : str
        URL of the database.
    data : str, optional
        Path of a text file, or of a folder with pictures; the King James Bible or scikit-learn's digits by default.
    workers : tuple of int, optional
        Instead of the preset's numbers of workers.
    models : tuple of str, optional
        Instead of the preset's models.
    methods : tuple of str, optional
        Some of the preset's methods.
    trials, seeds : int, optional
        Instead of the preset's numbers of draws and of final trials.

    Raises
    ------
    UsageError
        A name that there is not, or a number out of range.
    """

    task: str
    preset: str
    storage: str
    data: str | None = None
    workers: tuple[int, ...] | None = None
    models: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    trials: int | None = None
    seeds: int | None = None

    def __post_init__(self) -> None:
        _check_names("models", self.models, MODELS[self.task])
        _check_names("methods", self.methods, _methods(PRESETS[self.preset][self.task]))
        for name, value in (("trials", self.trials), ("workers", min(self.workers or (1,)))):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if self.seeds is not None and self.seeds < 0:
            raise UsageError(f"seeds must be at least 0, got {self.seeds}")
        for workers in self.worker_counts():
            if self.plan.batch_size % workers:
                raise UsageError(f"workers must divide the batch of {self.plan.batch_size}, got {workers}")

    def as_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """Undo `as_json`."""
        values: dict[str, Any] = json.loads(text)
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})

    @property
    def plan(self) -> Plan:
        """The preset's plan with what was asked for instead."""
        plan = PRESETS[self.preset][self.task]
        asked = {name: getattr(self, name) for name in ("trials", "seeds") if getattr(self, name) is not None}
        return dataclasses.replace(plan, **asked)

    def load_data(self) -> Corpus | Images:
        """The data to train on.

        Raises
        ------
        UsageError
            They cannot be read, or are too few for a step.
        """
        path, limit = None if self.data is None else Path(self.data), self.plan.limit
        if self.task == "lm":
            corpus = load_corpus(path, limit)
            needed, words = self.plan.batch_size * (self.plan.sequence_length + 1), len(corpus.train)
            if words < needed:
                raise UsageError(f"the text has {words} words to train on and a step needs {needed}: take a longer one")
            return corpus
        images = load_images(path)
        if len(images.train) < self.plan.batch_size:
            raise UsageError(f"there are {len(images.train)} pictures to train on, a step needs {self.plan.batch_size}")
        return images if limit is None else images.limited(limit)

    def data_name(self, data: Corpus | Images) -> str:
        """What records call the data."""
        if isinstance(data, Images):
            return data.name
        return "kjv" if self.data is None else Path(self.data).name

    def worker_counts(self) -> list[int]:
        """Numbers of workers, each of which takes a job of its own."""
        return list(dict.fromkeys(workers for grid in self.plan.grids for workers in self.workers or grid.workers))

    def cells(self, data_name: str, workers: int) -> list[Cell]:
        """All cells with that number of workers, in order."""
        cells = itertools.chain.from_iterable(
            itertools.product(self.models or grid.models, grid.settings.items())
            for grid in self.plan.grids
            if workers in (self.workers or grid.workers)
        )
        return list(
            dict.fromkeys(
                Cell(self.preset, self.task, model, data_name, workers, method, setting)
                for model, (method, settings) in cells
                for setting in settings
                if method in (self.methods or (method,))
            )
        )


def checksum(data: Corpus | Images) -> int:
    """The same for the same data."""
    if isinstance(data, Images):
        return data.crc32
    return zlib.crc32(b"".join(part.tobytes() for part in (data.train, data.validation, data.test)))


def _methods(plan: Plan) -> list[str]:
    return list(dict.fromkeys(method for grid in plan.grids for method in grid.settings))


def _check_names(option: str, names: Iterable[str] | None, known: Iterable[str]) -> None:
    for name in names or ():
        if name not in known:
            raise UsageError(f"{option} must be some of {', '.join(known)}, got {name!r}")
