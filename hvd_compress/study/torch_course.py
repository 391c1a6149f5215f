"""A trial's way through its steps, on one rank."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import horovod.torch as hvd
import torch

from hvd_compress.study.measure import Meter
from hvd_compress.study.plans import Plan
from hvd_compress.study.records import Look
from hvd_compress.study.stopping import EarlyStopping
from hvd_compress.study.torch_task import Task

__all__ = ["Course", "Watch"]

Watch = Callable[[int, int, str], None]
"""Told after each step: steps done, most steps that there can be, and how the model fares."""


class Course:
    """A task's way through the steps.

    Parameters
    ----------
    task : Task
    compression : str
        Config string.
    plan : Plan
    parameters : mapping
        With ``learning_rate``.
    momentum : float
        Of the optimizer.
    """

    def __init__(
        self, task: Task, compression: str, plan: Plan, parameters: Mapping[str, float], momentum: float
    ) -> None:
        self._task, self._plan, self._learning_rate = task, plan, parameters["learning_rate"]
        self.compression = task.compressions.from_config(compression)
        sgd = torch.optim.SGD(
            task.model.parameters(), lr=self._learning_rate, momentum=momentum, weight_decay=plan.weight_decay
        )
        self._optimizer = hvd.DistributedOptimizer(
            sgd, named_parameters=task.model.named_parameters(), compression=self.compression
        )
        hvd.broadcast_parameters(task.model.state_dict(), root_rank=0)
        self.meter = Meter(self.compression, task, task.workers)
        self.looks: list[Look] = []
        self.best_step, self.diverged = 0, False
        self._best: dict[str, Any] = {}
        self._loss_sum, self._loss_steps = 0.0, 0

    def run(self, looks: int, stopping: EarlyStopping, watch: Watch) -> None:
        """Train until the looks are used up, `stopping` says so, or the run has diverged."""
        every = self._plan.look_steps or self._task.steps_per_epoch
        steps, note = looks * every, ""
        for step in range(steps):
            loss = self._step(step, self._learning_rate * self._plan.learning_rate_share(step / steps))
            if self.diverged:
                return
            if (step + 1) % every == 0:
                self._look(step + 1, stopping)
                if self.diverged:
                    return
                note = f", validation {self.looks[-1].score:.4g}"
            watch(step + 1, steps, f"loss {loss:.2f}{note}")
            if stopping.ended:
                return

    def test_score(self) -> float:
        """The score on the test part of the parameters of the best look."""
        self._task.model.load_state_dict(self._best)
        return self._task.score("test")

    def _step(self, step: int, learning_rate: float) -> float:
        began = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._task.loss(step)
        torch.autograd.backward(loss)
        ready = time.perf_counter()
        self._optimizer.synchronize()
        exchange_seconds = time.perf_counter() - ready
        norm = torch.nn.utils.clip_grad_norm_(self._task.model.parameters(), self._plan.clip)
        # The averaged gradient is the same on all ranks, and so is this decision.
        self.diverged = not math.isfinite(float(norm))
        if not self.diverged:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            with self._optimizer.skip_synchronize():
                self._optimizer.step()
        self._loss_sum, self._loss_steps = self._loss_sum + loss.item(), self._loss_steps + 1
        self.meter.add_step(time.perf_counter() - began, exchange_seconds)
        return loss.item()

    def _look(self, step: int, stopping: EarlyStopping) -> None:
        loss_sum, loss_steps = self._task.workers.total([self._loss_sum, self._loss_steps], "loss")
        self._loss_sum, self._loss_steps = 0.0, 0
        score = self._task.score("validation")
        sent = round(self.meter.totals().sent_bytes)
        self.looks.append(Look(step, step / self._task.steps_per_epoch, sent, loss_sum / loss_steps, score))
        self.diverged = not math.isfinite(score)
        if not self.diverged and stopping.improves(score):
            self.best_step = step
            self._best = {name: value.clone() for name, value in self._task.model.state_dict().items()}
