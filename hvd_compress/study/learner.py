"""What training needs of a framework: a class for each, and nothing else knows which one it is."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

from numpy.typing import NDArray

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import Words


class Learned(NamedTuple):
    """What one step gave.

    Parameters
    ----------
    loss : float
        Mean cross-entropy of this rank's words, in nats.
    exchange_seconds : float
        Time that went by with nothing but combining gradients: waiting and decoding.
    """

    loss: float
    exchange_seconds: float


class Learner(ABC):
    """One rank's model with its optimizer and compressor; all ranks start from rank 0's parameters.

    Parameters
    ----------
    config : TrainConfig
        The same on every rank.
    vocabulary_size : int
        Number of words.
    compression : Any
        What ``DistributedOptimizer`` takes.

    Attributes
    ----------
    horovod : ModuleType
        The framework's front end of Horovod. Two of them in one process do not go together.
    compressions : type
        The framework's ``Compression``.
    suffix : str
        Of checkpoint files.
    state : Any
        The hidden state that `learn` carries on: set it before the first step.
    """

    horovod: ClassVar[Any]
    compressions: ClassVar[Any]
    suffix: ClassVar[str]
    state: Any

    @abstractmethod
    def __init__(self, config: TrainConfig, vocabulary_size: int, compression: Any) -> None: ...

    @classmethod
    def dropout_seed(cls, config: TrainConfig) -> int:
        """A seed of this rank's own.

        Ranks that left out the same units would learn from fewer subsets than one rank with all columns.
        """
        return config.seed * int(cls.horovod.size()) + int(cls.horovod.rank())

    @abstractmethod
    def parameters(self) -> list[NDArray[Any]]:
        """All trained arrays, not to be changed; a shared matrix is there once."""

    def parameter_count(self) -> int:
        """Number of trained values."""
        return sum(array.size for array in self.parameters())

    def crc32(self) -> int:
        """A checksum of all parameters."""
        crc = 0
        for array in self.parameters():
            crc = zlib.crc32(array.tobytes(), crc)
        return crc

    @abstractmethod
    def initial_state(self, columns: int) -> Any:
        """A hidden state of zeros."""

    @abstractmethod
    def learn(self, words: Words, learning_rate: float) -> Learned:
        """Take one optimizer step on words of shape (length + 1, columns)."""

    @abstractmethod
    def cross_entropy(self, words: Words, state: Any) -> tuple[float, Any]:
        """Sum over words of shape (length + 1, columns) after a hidden state, and the state to carry on."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on; rank 0's holds the parameters and the optimizer for all."""

    @abstractmethod
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, among other things; every rank calls it with its own."""

    @staticmethod
    @abstractmethod
    def write(saved: dict[str, Any], file: BinaryIO) -> None:
        """Write what `state_dict` gave and JSON values beside it."""

    @staticmethod
    @abstractmethod
    def read(path: Path) -> dict[str, Any]:
        """Undo `write`."""
