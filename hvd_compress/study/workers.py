"""Small agreements between the ranks of a job."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import cast

import horovod.torch as hvd
from torch import Tensor, nn

from hvd_compress.study.errors import UsageError

WRONG_USAGE = 2


def agree(error: str | None) -> None:
    """End the job on every rank if any rank has met an error, instead of leaving the others to wait for it.

    Every rank must call it at the same place, with its error or None.

    Raises
    ------
    UsageError
        The error of the lowest rank that has one, the same on all ranks.
    """
    errors = [text for text in hvd.allgather_object(error, name="study.agree") if text is not None]
    if errors:
        raise UsageError(errors[0])


def total(values: Tensor, name: str) -> Tensor:
    """Sum over all ranks, the same on each."""
    return cast(Tensor, hvd.allreduce(values, op=hvd.Sum, name=f"study.{name}"))


def parameter_crc32(model: nn.Module) -> tuple[int, ...]:
    """A checksum of all parameters for each rank, in rank order."""
    crc = 0
    for parameter in model.parameters():
        crc = zlib.crc32(parameter.detach().numpy().tobytes(), crc)
    return tuple(hvd.allgather_object(crc, name="study.crc32"))


def run_on_all_ranks(command: Callable[[], object]) -> int:
    """Run a job's command on this rank; returns the exit status.

    An error in the use is printed by rank 0 alone, as one sentence, and gives status 2 on all ranks. It is agreed on
    first: a launcher that saw another rank end sooner would kill rank 0 before it has printed.
    """
    try:
        command()
    except UsageError as error:
        hvd.init()
        if hvd.rank() == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        hvd.barrier()
        return WRONG_USAGE
    return 0
