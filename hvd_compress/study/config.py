"""Settings of a training run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_compress.study.errors import UsageError


@dataclass(frozen=True)
class TrainConfig:
    """What to train, and how; the same on every rank.

    Parameters
    ----------
    size : str
        Size of the model: ``small``, ``medium`` or ``large``.
    compression : str
        Config string of the compressor, such as ``"topk:density=0.01"``, or ``"none"``.
    data : Path, optional
        A UTF-8 text file, one sentence a line; the King James Bible by default.
    steps : int
        Optimizer steps in all, those before a checkpoint included.
    batch_size : int
        Columns of text that all ranks together read in a step; a multiple of the number of ranks.
    sequence_length : int
        Words of a column in a step; the gradient does not reach further back.
    learning_rate, clip : float
        Of plain SGD, and the largest norm of the averaged gradient.
    decay : float
        Share of the steps, at the end, in which the learning rate falls linearly to zero, in [0, 1].
    dropout : float
        Share of units left out, in [0, 1).
    seed : int
        Of the parameters and of dropout.
    evaluate_every : int
        Steps between two looks at the validation perplexity.
    out : Path, optional
        Folder for ``result.json``.
    checkpoint : Path, optional
        Folder for checkpoints, one file for each rank.
    checkpoint_every : int
        Steps between two checkpoints; there is one at the end too.
    resume : bool
        Continue from the last checkpoint.

    Raises
    ------
    UsageError
        A value out of range.
    """

    size: str = "small"
    compression: str = "none"
    data: Path | None = None
    steps: int = 600
    batch_size: int = 40
    sequence_length: int = 35
    learning_rate: float = 20.0
    clip: float = 0.25
    decay: float = 0.5
    dropout: float = 0.0
    seed: int = 0
    evaluate_every: int = 100
    out: Path | None = None
    checkpoint: Path | None = None
    checkpoint_every: int = 200
    resume: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "sequence_length", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} must be a positive number, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be in [0, 1), got {self.dropout}")
        if not 0 <= self.decay <= 1:
            raise UsageError(f"decay must be in [0, 1], got {self.decay}")
        if self.resume and self.checkpoint is None:
            raise UsageError("resume needs the folder of the checkpoint; give checkpoint too")

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        values = dataclasses.asdict(self)
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def learning_rate_of(self, step: int) -> float:
        """The learning rate of a step, the first of which is 0."""
        falling = self.decay * self.steps
        return self.learning_rate * min(1.0, (self.steps - step) / falling if falling else 1.0)

    def trajectory(self) -> dict[str, Any]:
        """The settings that decide which parameters a step ends with: a checkpoint continues only under the same."""
        free = {"evaluate_every", "out", "checkpoint", "checkpoint_every", "resume"}
        if not self.decay:
            free.add("steps")
        return {name: value for name, value in self.as_dict().items() if name not in free}
