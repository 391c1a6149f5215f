"""What a study knows of each of its trials: JSON values that the database keeps, and reports are made from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hvd_compress.study.results import StepTime, Traffic

__all__ = ["Look", "Record"]


@dataclass(frozen=True)
class Look:
    """One look at a model while it trains.

    Parameters
    ----------
    step : int
        Optimizer steps done.
    epoch : float
        Passes over the data done.
    sent_bytes : int
        Gradient bytes that one worker has handed to Horovod so far.
    train_loss : float
        Mean cross-entropy since the last look, in nats, over all ranks.
    score : float
        On the validation part: perplexity, or accuracy in [0, 1].
    """

    step: int
    epoch: float
    sent_bytes: int
    train_loss: float
    score: float


@dataclass(frozen=True)
class Record:
    """A trial that ended.

    Parameters
    ----------
    task : str
        "lm" or "vision".
    model : str
        Such as "lstm-small", "transformer", "resnet20".
    data : str
        Name of the data set.
    workers : int
    method, setting : str
        Such as "topk" and "0.01": which codec, and how strongly it compresses. "none" and "" for dense training.
    compression : str
        Config string of the compressor.
    phase : str
        "search" for a draw of hyper-parameters, "final" for the best of them with a seed of its own.
    seed : int
    parameters : dict of str to float
        Hyper-parameters, such as learning_rate, dropout and momentum.
    model_size : int
        Trained values.
    looks : tuple of Look
    best_step : int
        Step of the best validation score, of whose parameters the test score is.
    validation_score, test_score : float
        Perplexity or accuracy; NaN for a run that diverged.
    traffic : Traffic
        Bytes of a step and worker.
    milliseconds : StepTime
        Of a step.
    seconds : float
        Of the whole trial.
    ranks_equal : bool
        Whether all ranks ended with the same parameters, bit for bit.
    """

    task: str
    model: str
    data: str
    workers: int
    method: str
    setting: str
    compression: str
    phase: str
    seed: int
    parameters: dict[str, float]
    model_size: int
    looks: tuple[Look, ...]
    best_step: int
    validation_score: float
    test_score: float
    traffic: Traffic
    milliseconds: StepTime
    seconds: float
    ranks_equal: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Record:
        """Undo `as_dict`."""
        return cls(
            **values
            | {
                "looks": tuple(Look(**look) for look in values["looks"]),
                "traffic": Traffic(**values["traffic"]),
                "milliseconds": StepTime(**values["milliseconds"]),
            }
        )
