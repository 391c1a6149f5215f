"""What an exchange sees of the network while it runs as a function of arrays: bytes that come and go as arguments."""

from __future__ import annotations

from typing import Any

from hvd_compress.codec import Array

__all__ = ["GraphCollective"]


class GraphCollective:
    """Keeps the buffer that a graph is to gather, and counts it."""

    def __init__(self, process_set: Any) -> None:
        self.rank: int = process_set.rank()
        self.world_size: int = process_set.size()
        self.sent_bytes = 0
        self.wait_seconds = 0.0
        self.buffer: Array = None

    def allgather(self, buffer: Array, name: str) -> Array:
        """Take the buffer of this rank; it stands for the handle until what was gathered is known."""
        self.buffer = buffer
        self.sent_bytes += int(buffer.shape[0])
        return buffer

    def wait(self, handle: Array) -> Array:
        """Return what was gathered."""
        return handle
