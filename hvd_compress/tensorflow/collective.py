"""What an exchange sees of the network while it runs as a function of arrays, which come and go as arguments."""

from __future__ import annotations

from typing import Any

from hvd_compress.codec import Array
from hvd_compress.ops import ops_for

__all__ = ["GraphCollective"]


class GraphCollective:
    """Keeps the array that a graph is to gather or sum next, counts it, and has what came of the last one.

    Attributes
    ----------
    buffer, arrived : array or None
    """

    def __init__(self, process_set: Any) -> None:
        self.rank: int = process_set.rank()
        self.world_size: int = process_set.size()
        self.sent_bytes = 0
        self.wait_seconds = 0.0
        self.buffer: Array = None
        self.arrived: Array = None

    def allgather(self, buffer: Array, name: str) -> str:
        """Take what this rank sends; the name stands for a handle."""
        return self._take(buffer, name)

    def allreduce(self, array: Array, name: str) -> str:
        """Take what this rank adds; the name stands for a handle."""
        return self._take(array, name)

    def wait(self, handle: str) -> Array:
        """Return what came."""
        return self.arrived

    def _take(self, array: Array, name: str) -> str:
        self.buffer = array
        ops = ops_for(array)
        self.sent_bytes += ops.shape(ops.to_bytes(array))[0]
        return name
