"""Horovod's allgather as the exchange sees it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import horovod.torch as hvd
import torch

from hvd_compress.ops.streams import arrived, continue_after, mark, used_here
from hvd_compress.torch.gate import Gate, Passage
from hvd_compress.torch.host import Array, host_array, tensor_of

__all__ = ["HorovodCollective"]


class HorovodCollective:
    """Allgather within one process set; counts the bytes handed over and the time spent waiting.

    Parameters
    ----------
    process_set : horovod.torch.ProcessSet
    host : bool
        Whether arrays are NumPy's instead of tensors.
    gate : Gate
        That nothing is gathered before.
    step : int
        That this is for.
    """

    def __init__(self, process_set: Any, host: bool, gate: Gate, step: int) -> None:
        self._gate = gate
        self._step = step
        self._process_set = process_set
        self._host = host
        self.rank: int = process_set.rank()
        self.world_size: int = process_set.size()
        self.sent_bytes = 0
        self.wait_seconds = 0.0

    def allgather(self, buffer: Array, name: str) -> Passage:
        """Start gathering a 1-D uint8 array."""
        tensor, name = self._count(buffer), f"hvd_compress.{name}"
        ready = mark(tensor)

        def start() -> int:
            # The gate may open in another thread, whose current stream knows nothing of what fills the buffer.
            continue_after(ready, tensor)
            return int(hvd.allgather_async(tensor, name=name, process_set=self._process_set))

        return self._gate.enter(self._step, start, tensor)

    def allreduce(self, array: Array, name: str) -> int:
        """Start adding a 1-D array over the ranks."""
        tensor, name = self._count(array), f"hvd_compress.{name}"
        handle: int = hvd.allreduce_async(tensor, name=name, op=hvd.Sum, process_set=self._process_set)
        return handle

    def wait(self, handle: Passage | int) -> Array:
        """Wait for a handle and return the array that came; of an allgather all ranks' arrays one after another.

        None if Horovod was initialised anew since.
        """
        start = perf_counter()
        gathered: torch.Tensor = hvd.synchronize(self._gate.through(handle) if isinstance(handle, Passage) else handle)
        self.wait_seconds += perf_counter() - start
        if gathered is not None:
            arrived(gathered)
        if isinstance(handle, Passage):
            # It may still be read when this returns: the current stream waits for that, the one that made it does not.
            used_here(handle.buffer)
        return host_array(gathered) if self._host and gathered is not None else gathered

    def _count(self, array: Array) -> torch.Tensor:
        tensor = tensor_of(array)
        self.sent_bytes += tensor.numel() * tensor.element_size()
        return tensor
