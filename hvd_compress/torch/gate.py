"""Nothing is gathered, or summed twice, in a step before it is known that every rank takes part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch

from hvd_compress.codec import CompressionError

__all__ = ["Gate", "Passage"]

_JOINED = (
    "a rank has called hvd.join(), during which Horovod cannot gather, nor a rank take part in two phases: with uneven "
    "data let all ranks make the same number of steps, or use a codec that is summed once, such as randomk"
)


class Passage:
    """What came, or will come, of a call that had to wait at the gate."""

    def __init__(self, start: Callable[[], int], buffer: torch.Tensor) -> None:
        self._start = start
        self.buffer = buffer
        self.handle: int | None = None

    def pass_through(self) -> None:
        """Make the call."""
        self.handle = self._start()


class Gate:
    """Counts the ranks once in each step that gathers or sums twice, while the first tensors are encoded.

    An allgather of Horovod's while a rank has joined ends the background loop of that rank, for which the others then
    wait for ever. In two phases, a mean would be taken over ranks that are not there.

    Parameters
    ----------
    process_set : horovod.torch.ProcessSet
    name : str
        Of the count, equal on all ranks.
    """

    def __init__(self, process_set: Any, name: str) -> None:
        self._process_set = process_set
        self._name = f"{name}ranks"
        self._step: int | None = None
        self._count: int | None = None
        self._waiting: list[Passage] = []

    def enter(self, step: int, start: Callable[[], int], buffer: torch.Tensor) -> Passage:
        """Make a call that sends a buffer as soon as the ranks of this step are counted."""
        if step != self._step:
            self._step = step
            one = torch.ones(1)
            self._count = hvd.allreduce_async(one, name=self._name, op=hvd.Sum, process_set=self._process_set)
        passage = Passage(start, buffer)
        self._waiting.append(passage)
        if self._count is None or hvd.poll(self._count):
            self.open()
        return passage

    def through(self, passage: Passage) -> int:
        """The handle of a call, which is made if it still waits."""
        if passage.handle is None:
            self.open()
        assert passage.handle is not None
        return passage.handle

    def open(self) -> None:
        """Make the calls that wait, once the ranks are counted.

        Raises
        ------
        CompressionError
            If a rank has joined.
        """
        if self._count is not None:
            count, self._count = self._count, None
            if int(hvd.synchronize(count)) < self._process_set.size():
                self._waiting.clear()
                raise CompressionError(_JOINED)
        waiting, self._waiting = self._waiting, []
        for passage in waiting:
            passage.pass_through()
