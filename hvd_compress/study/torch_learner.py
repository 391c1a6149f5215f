"""The language model in PyTorch, on ``horovod.torch``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, BinaryIO

import horovod.torch as hvd
import torch
from numpy.typing import NDArray
from torch.nn import functional

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import Words
from hvd_compress.study.learner import Learned, Learner
from hvd_compress.study.torch_model import State, build_model
from hvd_compress.torch import Compression, Compressor


class TorchLearner(Learner):
    """A :class:`Learner` in PyTorch."""

    horovod = hvd
    compressions = Compression
    suffix = "pt"

    def __init__(self, config: TrainConfig, vocabulary_size: int, compression: Any) -> None:
        self._clip, self._compression = config.clip, compression
        torch.manual_seed(config.seed)
        self._model = build_model(config.size, vocabulary_size, config.dropout)
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self._model.parameters(), lr=config.learning_rate),
            named_parameters=self._model.named_parameters(),
            compression=compression,
        )
        self._broadcast()
        torch.manual_seed(self.dropout_seed(config))

    def _broadcast(self) -> None:
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self._optimizer, root_rank=0)

    def parameters(self) -> list[NDArray[Any]]:
        return [parameter.detach().numpy() for parameter in self._model.parameters()]

    def initial_state(self, columns: int) -> State:
        return self._model.initial_state(columns)

    def learn(self, words: Words, learning_rate: float) -> Learned:
        tokens = torch.from_numpy(words)
        self._optimizer.zero_grad()
        scores, (hidden, cell) = self._model(tokens[:-1], self.state)
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[1:].flatten())
        torch.autograd.backward(loss)
        self.state = hidden.detach(), cell.detach()
        ready = time.perf_counter()
        self._optimizer.synchronize()
        exchange_seconds = time.perf_counter() - ready
        # The norm that counts is the averaged gradient's, equal on all ranks.
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        with self._optimizer.skip_synchronize():
            self._optimizer.step()
        return Learned(loss.item(), exchange_seconds)

    @torch.no_grad()
    def cross_entropy(self, words: Words, state: State) -> tuple[float, State]:
        tokens = torch.from_numpy(words)
        self._model.eval()
        scores, state = self._model(tokens[:-1], state)
        self._model.train()
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[1:].flatten(), reduction="sum")
        return loss.item(), state

    def state_dict(self) -> dict[str, Any]:
        own = {
            "state": self.state,
            "generator": torch.get_rng_state(),
            "compression": self._compression.state_dict() if isinstance(self._compression, Compressor) else None,
        }
        common = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return own | common if hvd.rank() == 0 else own

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if hvd.rank() == 0:
            self._model.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optimizer"])
        self._broadcast()
        if saved["compression"] is not None:
            self._compression.load_state_dict(saved["compression"])
        self.state = saved["state"]
        torch.set_rng_state(saved["generator"])

    @staticmethod
    def write(saved: dict[str, Any], file: BinaryIO) -> None:
        torch.save(saved, file)

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        return dict(torch.load(path, weights_only=True))
