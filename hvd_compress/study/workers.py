"""The ranks of a job, and their small agreements."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from hvd_compress.study.errors import UsageError

WRONG_USAGE = 2

T = TypeVar("T")


class Workers:
    """All ranks of this job; the methods must be called by each of them at the same place.

    Parameters
    ----------
    horovod : ModuleType
        ``horovod.torch`` or ``horovod.tensorflow``, whichever the job uses; it is initialised.
    """

    def __init__(self, horovod: Any) -> None:
        horovod.init()
        self._horovod = horovod
        self.rank: int = horovod.rank()
        self.size: int = horovod.size()

    @property
    def exchanging(self) -> bool:
        """Whether gradients go through Horovod: with one worker they do in an elastic job only."""
        return self.size > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"

    def broadcast(self, value: T, name: str) -> T:
        """Rank 0's value."""
        return cast(T, self._horovod.broadcast_object(value, root_rank=0, name=f"study.{name}"))

    def gather(self, value: Any, name: str) -> list[Any]:
        """Every rank's value, in rank order."""
        return list(self._horovod.allgather_object(value, name=f"study.{name}"))

    def total(self, values: Sequence[float], name: str) -> list[float]:
        """Sums over all ranks, the same on each."""
        return [sum(column) for column in zip(*self.gather(list(values), name), strict=True)]

    def agree(self, error: str | None) -> None:
        """End the job on every rank if any rank has met an error, instead of leaving the others to wait for it.

        Raises
        ------
        UsageError
            The error of the lowest rank that has one, the same on all ranks.
        """
        errors = [text for text in self.gather(error, "agree") if text is not None]
        if errors:
            raise UsageError(errors[0])

    def barrier(self) -> None:
        """Wait for all ranks."""
        # Horovod's front end for TensorFlow has no barrier.
        self.gather(None, "barrier")


def run_on_all_ranks(command: Callable[[], object], horovod: Any) -> int:
    """Run a job's command on this rank; returns the exit status.

    An error in the use is printed by rank 0 alone, as one sentence, and gives status 2 on all ranks. It is agreed on
    first: a launcher that saw another rank end sooner would kill rank 0 before it has printed.
    """
    try:
        command()
    except UsageError as error:
        workers = Workers(horovod)
        if workers.rank == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        workers.barrier()
        return WRONG_USAGE
    return 0
