"""Horovod's allgather as the exchange sees it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import horovod.torch as hvd
import torch

__all__ = ["HorovodCollective"]


class HorovodCollective:
    """Allgather within one process set; counts the bytes handed over and the time spent waiting."""

    def __init__(self, process_set: Any) -> None:
        self._process_set = process_set
        self.rank: int = process_set.rank()
        self.world_size: int = process_set.size()
        self.sent_bytes = 0
        self.wait_seconds = 0.0

    def allgather(self, buffer: torch.Tensor, name: str) -> int:
        """Start gathering a 1-D uint8 tensor."""
        self.sent_bytes += buffer.numel() * buffer.element_size()
        handle: int = hvd.allgather_async(buffer, name=f"hvd_compress.{name}", process_set=self._process_set)
        return handle

    def allreduce(self, array: torch.Tensor, name: str) -> int:
        """Start adding a 1-D tensor over the ranks."""
        self.sent_bytes += array.numel() * array.element_size()
        name = f"hvd_compress.{name}"
        handle: int = hvd.allreduce_async(array, name=name, op=hvd.Sum, process_set=self._process_set)
        return handle

    def wait(self, handle: int) -> torch.Tensor:
        """Wait for a handle and return the tensor that came; of an allgather all ranks' tensors one after another."""
        start = perf_counter()
        gathered: torch.Tensor = hvd.synchronize(handle)
        self.wait_seconds += perf_counter() - start
        return gathered
