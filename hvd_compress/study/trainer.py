"""One rank's part of a training run: what it learns, what that costs and its place in the text."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import Corpus, columns
from hvd_compress.study.evaluation import perplexity
from hvd_compress.study.learner import Learner
from hvd_compress.study.measure import Meter
from hvd_compress.study.results import CurvePoint
from hvd_compress.study.workers import Workers


class Trainer:
    """Trains step by step; its state can be saved and continued without a trace.

    Parameters
    ----------
    config : TrainConfig
        The same on every rank.
    corpus : Corpus
        The same on every rank; each trains on its own columns.
    compression : Any
        What ``DistributedOptimizer`` takes.
    kind : type of Learner
        The framework.
    workers : Workers
        The ranks that train together.
    """

    def __init__(
        self, config: TrainConfig, corpus: Corpus, compression: Any, kind: type[Learner], workers: Workers
    ) -> None:
        self.config, self.corpus, self.workers = config, corpus, workers
        self.learner = kind(config, len(corpus.vocabulary), compression)
        self.words = columns(corpus.train, config.batch_size, rank=workers.rank, workers=workers.size)
        self.steps_per_epoch = (len(self.words) - 1) // config.sequence_length
        self.meter = Meter(compression, self.learner, workers)
        self.step, self.loss_sum, self.loss_steps, self.sent_before = 0, 0.0, 0, 0
        self.curve: list[CurvePoint] = []

    @property
    def trajectory(self) -> dict[str, Any]:
        """All that decides the parameters after a step; a checkpoint continues only under the same."""
        return self.config.trajectory() | {"workers": self.workers.size}

    def train_step(self) -> float:
        """Take one optimizer step; returns this rank's loss in nats per word."""
        began = time.perf_counter()
        start = self.step % self.steps_per_epoch * self.config.sequence_length
        if start == 0:
            self.learner.state = self.learner.initial_state(self.words.shape[1])
        words = self.words[start : start + self.config.sequence_length + 1]
        learned = self.learner.learn(words, self.config.learning_rate_of(self.step))
        self.step += 1
        self.loss_sum, self.loss_steps = self.loss_sum + learned.loss, self.loss_steps + 1
        self.meter.add_step(time.perf_counter() - began, learned.exchange_seconds)
        return learned.loss

    @property
    def sent_bytes(self) -> int:
        """Gradient bytes that this worker has handed to Horovod in the whole run."""
        return self.sent_before + round(self.meter.totals().sent_bytes)

    def look(self) -> CurvePoint:
        """Measure the validation perplexity and add a point to the curve; every rank calls it."""
        loss_sum, loss_steps = self.workers.total([self.loss_sum, self.loss_steps], "loss")
        point = CurvePoint(
            step=self.step,
            sent_bytes=self.sent_bytes,
            train_loss=loss_sum / loss_steps,
            validation_perplexity=perplexity(self.learner, self.workers, self.corpus.validation),
        )
        self.curve.append(point)
        self.loss_sum, self.loss_steps = 0.0, 0
        return point

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on; rank 0's holds the parameters and the optimizer for all."""
        own = {
            "trajectory": self.trajectory,
            "step": self.step,
            "losses": (self.loss_sum, self.loss_steps),
            "sent_bytes": self.sent_bytes,
            "curve": [asdict(point) for point in self.curve],
        }
        return own | self.learner.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave; every rank calls it with its own."""
        self.learner.load_state_dict(saved)
        self.step = saved["step"]
        self.loss_sum, self.loss_steps = saved["losses"]
        self.sent_before = saved["sent_bytes"]
        self.curve = [CurvePoint(**point) for point in saved["curve"]]
