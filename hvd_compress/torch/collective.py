"""Horovod's collectives as the exchange sees them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import horovod.torch as hvd
import torch

from hvd_compress.ops.streams import arrived, continue_after, mark, used_here
from hvd_compress.torch.gate import Gate, Passage
from hvd_compress.torch.host import Array, host_array, tensor_of

__all__ = ["HorovodCollective"]


class HorovodCollective:
    """Collectives within one process set; counts the bytes handed over and the time spent waiting.

    Parameters
    ----------
    process_set : horovod.torch.ProcessSet
    host : bool
        Whether arrays are NumPy's instead of tensors.
    gate : Gate
        That nothing is gathered or summed before.
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
        return self._start(hvd.allgather_async, buffer, name)

    def allreduce(self, array: Array, name: str) -> Passage:
        """Start adding a 1-D array over the ranks."""
        return self._start(hvd.allreduce_async, array, name, op=hvd.Sum)

    def wait(self, handle: Passage) -> Array:
        """Wait for a handle and return the array that came; of an allgather all ranks' arrays one after another.

        None if Horovod was initialised anew since.
        """
        start = perf_counter()
        result: torch.Tensor = hvd.synchronize(self._gate.through(handle))
        self.wait_seconds += perf_counter() - start
        if result is not None:
            arrived(result)
        # It may still be read when this returns: the current stream waits for that, the one that made it does not.
        used_here(handle.buffer)
        return host_array(result) if self._host and result is not None else result

    def _start(self, collective: Callable[..., int], array: Array, name: str, **settings: Any) -> Passage:
        tensor = self._count(array)
        ready = mark(tensor)

        def start() -> int:
            # The gate may open in another thread, whose current stream knows nothing of what fills the buffer.
            continue_after(ready, tensor)
            return int(collective(tensor, name=f"hvd_compress.{name}", process_set=self._process_set, **settings))

        return self._gate.enter(self._step, start, tensor)

    def _count(self, array: Array) -> torch.Tensor:
        tensor = tensor_of(array)
        self.sent_bytes += tensor.numel() * tensor.element_size()
        return tensor
