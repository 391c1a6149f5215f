"""What a trial trains on one rank: a model in PyTorch together with its data."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn

from hvd_compress.payload import TensorSpec
from hvd_compress.study.workers import Workers
from hvd_compress.torch import Compression

__all__ = ["Task"]


class Task(ABC):
    """A model and this rank's share of the data.

    Parameters
    ----------
    model : nn.Module
        With the same parameters on all ranks.
    workers : Workers
        The ranks that train together.
    """

    compressions = Compression
    steps_per_epoch: int

    def __init__(self, model: nn.Module, workers: Workers) -> None:
        self.model, self.workers = model, workers

    @abstractmethod
    def loss(self, step: int) -> Tensor:
        """Mean cross-entropy of this rank's share of a step's data, in nats."""

    @abstractmethod
    def score(self, part: str) -> float:
        """Perplexity or accuracy on the "validation" or "test" part, the same on all ranks, which share the work."""

    def parameters(self) -> list[NDArray[Any]]:
        """All trained arrays, not to be changed; a shared matrix is there once."""
        return [parameter.detach().numpy() for parameter in self.model.parameters()]

    def specs(self) -> dict[str, TensorSpec]:
        """What is known of the parameters by name."""
        return {name: TensorSpec(tuple(p.shape), "float32") for name, p in self.model.named_parameters()}

    def crc32(self) -> int:
        """A checksum of all parameters."""
        crc = 0
        for array in self.parameters():
            crc = zlib.crc32(array.tobytes(), crc)
        return crc
