"""One rank's part of a training run: model, optimizer, compressor and place in the text."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import horovod.torch as hvd
import torch
from torch.nn import functional

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import Corpus, columns
from hvd_compress.study.evaluation import perplexity
from hvd_compress.study.measure import Meter
from hvd_compress.study.models import build_model
from hvd_compress.study.results import CurvePoint
from hvd_compress.study.workers import total
from hvd_compress.torch import Compressor


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
    """

    def __init__(self, config: TrainConfig, corpus: Corpus, compression: Any) -> None:
        self.config, self.corpus, self.compression = config, corpus, compression
        torch.manual_seed(config.seed)
        self.model = build_model(config.size, len(corpus.vocabulary), config.dropout)
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=config.learning_rate),
            named_parameters=self.model.named_parameters(),
            compression=compression,
        )
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        # Ranks that left out the same units would learn from fewer subsets than one rank with all columns.
        torch.manual_seed(config.seed * hvd.size() + hvd.rank())
        self.words = columns(corpus.train, config.batch_size, rank=hvd.rank(), workers=hvd.size())
        self.steps_per_epoch = (len(self.words) - 1) // config.sequence_length
        self.state = self.model.initial_state(self.words.shape[1])
        self.meter = Meter(compression, self.model)
        self.step, self.loss_sum, self.loss_steps, self.sent_before = 0, 0.0, 0, 0
        self.curve: list[CurvePoint] = []

    @property
    def trajectory(self) -> dict[str, Any]:
        """All that decides the parameters after a step; a checkpoint continues only under the same."""
        return self.config.trajectory() | {"workers": hvd.size()}

    def train_step(self) -> float:
        """Take one optimizer step; returns this rank's loss in nats per word."""
        began = time.perf_counter()
        start = self.step % self.steps_per_epoch * self.config.sequence_length
        if start == 0:
            self.state = self.model.initial_state(self.words.shape[1])
        words = self.words[start : start + self.config.sequence_length + 1]
        self.optimizer.zero_grad()
        scores, (hidden, cell) = self.model(words[:-1], self.state)
        loss = functional.cross_entropy(scores.flatten(0, 1), words[1:].flatten())
        torch.autograd.backward(loss)
        self.state = hidden.detach(), cell.detach()
        ready = time.perf_counter()
        self.optimizer.synchronize()
        synchronized = time.perf_counter()
        # The norm that counts is the averaged gradient's, equal on all ranks.
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate_of(self.step)
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        self.step += 1
        value = loss.item()
        self.loss_sum, self.loss_steps = self.loss_sum + value, self.loss_steps + 1
        self.meter.add_step(time.perf_counter() - began, synchronized - ready)
        return value

    @property
    def sent_bytes(self) -> int:
        """Gradient bytes that this worker has handed to Horovod in the whole run."""
        return self.sent_before + round(self.meter.totals().sent_bytes)

    def look(self) -> CurvePoint:
        """Measure the validation perplexity and add a point to the curve; every rank calls it."""
        losses = total(torch.tensor([self.loss_sum, float(self.loss_steps)], dtype=torch.float64), "loss")
        point = CurvePoint(
            step=self.step,
            sent_bytes=self.sent_bytes,
            train_loss=float(losses[0] / losses[1]),
            validation_perplexity=perplexity(self.model, self.corpus.validation),
        )
        self.curve.append(point)
        self.loss_sum, self.loss_steps = 0.0, 0
        return point

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on; rank 0's holds the parameters and the optimizer for all."""
        own = {
            "trajectory": self.trajectory,
            "step": self.step,
            "state": self.state,
            "generator": torch.get_rng_state(),
            "losses": (self.loss_sum, self.loss_steps),
            "sent_bytes": self.sent_bytes,
            "curve": [asdict(point) for point in self.curve],
            "compression": self.compression.state_dict() if isinstance(self.compression, Compressor) else None,
        }
        common = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return own | common if hvd.rank() == 0 else own

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave; every rank calls it with its own."""
        if hvd.rank() == 0:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        if saved["compression"] is not None:
            self.compression.load_state_dict(saved["compression"])
        self.step, self.state = saved["step"], saved["state"]
        self.loss_sum, self.loss_steps = saved["losses"]
        self.sent_before = saved["sent_bytes"]
        self.curve = [CurvePoint(**point) for point in saved["curve"]]
        torch.set_rng_state(saved["generator"])
