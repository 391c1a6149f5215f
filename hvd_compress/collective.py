"""What an exchange needs of a communication library."""

from __future__ import annotations

from typing import Any, Protocol

from hvd_compress.codec import Array

__all__ = ["Collective", "CountingCollective", "SummingCollective"]


class Collective(Protocol):
    """Operations that are started, and waited for by their handles."""

    def allgather(self, buffer: Array, name: str) -> Any:
        """Start gathering 1-D uint8 `buffer` from all ranks; return a handle. Its result: one buffer after another."""

    def allreduce(self, array: Array, name: str) -> Any:
        """Start adding a 1-D int32, int64 or float32 array over all ranks; return a handle. Its result: the sum."""

    def wait(self, handle: Any) -> Array:
        """Wait for a handle and return the result, which may be overwritten."""


class SummingCollective(Collective, Protocol):
    """What sharing one budget over all tensors needs besides."""

    world_size: int


class CountingCollective(SummingCollective, Protocol):
    """A collective that knows its ranks, what it was handed and how long it waited."""

    rank: int
    sent_bytes: int
    wait_seconds: float
