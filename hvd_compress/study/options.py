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

from hvd_compress.policy import compose_config
from hvd_compress.registry import codec_class, codec_names
from hvd_compress.study.cells import Cell
from hvd_compress.study.data import Corpus, load_corpus
from hvd_compress.study.errors import UsageError
from hvd_compress.study.images import Images, load_images
from hvd_compress.study.plans import Grid, Plan
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
        Some of the preset's methods, and config strings of codecs; a codec's name that is no method of the preset
        stands for its defaults.
    trials, seeds : int, optional
        Instead of the preset's numbers of draws and of final trials.

    Raises
    ------
    UsageError
        A name that there is not, a config string that is wrong, or a number out of range.
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
        for method in self._configs():
            _check_config(method, self._named())
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
            for grid in self._grids()
            if workers in (self.workers or grid.workers)
        )
        return list(
            dict.fromkeys(
                Cell(self.preset, self.task, model, data_name, workers, method, setting)
                for model, (method, settings) in cells
                for setting in settings
            )
        )

    def _grids(self) -> list[Grid]:
        """The plan's, as far as their methods were asked for, and the first one's models and workers with configs."""
        grids = self.plan.grids
        if self.methods is None:
            return list(grids)
        kept = [{name: grid.settings[name] for name in grid.settings if name in self.methods} for grid in grids]
        configs = [{name.strip(): (rest.strip(" ,"),)} for name, _, rest in (c.partition(":") for c in self._configs())]
        return [
            *(grid._replace(settings=settings) for grid, settings in zip(grids, kept, strict=True)),
            *(grids[0]._replace(settings=settings) for settings in configs),
        ]

    def _named(self) -> list[str]:
        """The preset's methods."""
        grids = PRESETS[self.preset][self.task].grids
        return list(dict.fromkeys(method for grid in grids for method in grid.settings))

    def _configs(self) -> list[str]:
        """What was asked for beside them."""
        return [method for method in self.methods or () if method not in self._named()]


def checksum(data: Corpus | Images) -> int:
    """The same for the same data."""
    if isinstance(data, Images):
        return data.crc32
    return zlib.crc32(b"".join(part.tobytes() for part in (data.train, data.validation, data.test)))


def _check_names(option: str, names: Iterable[str] | None, known: Iterable[str]) -> None:
    for name in names or ():
        if name not in known:
            raise UsageError(f"{option} must be some of {', '.join(known)}, got {name!r}")


def _check_config(config: str, named: Iterable[str]) -> None:
    codecs = [name for name in codec_names() if not codec_class(name).wrapper]
    if config.partition(":")[0].strip() not in codecs:
        raise UsageError(
            f"methods must be some of {', '.join(named)}, or configs such as powersgd:rank=2 of {', '.join(codecs)}; "
            f"got {config!r}"
        )
    try:
        compose_config(config)
    except (TypeError, ValueError) as error:
        raise UsageError(f"methods: {error}") from error
