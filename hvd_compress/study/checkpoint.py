"""Checkpoints of a job: a file of its own for each rank, because each rank's residuals and hidden state are its own.

Rank 0's file also holds what is common to all. A rank removes its older file only after all have written the new one,
so that an interruption at any moment leaves one step that is complete on every rank. Nothing needs a shared disk.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

from hvd_compress.study.errors import UsageError


def _name(step: int, rank: int) -> str:
    return f"step-{step:08d}-rank-{rank}.pt"


def _steps(directory: Path, rank: int) -> list[int]:
    pattern = re.compile(rf"step-(\d+)-rank-{rank}\.pt")
    return sorted(int(found[1]) for path in directory.glob("step-*.pt") if (found := pattern.fullmatch(path.name)))


def save(directory: Path, step: int, state: dict[str, Any]) -> None:
    """Write this rank's state after ``step`` steps and drop its older ones; every rank calls it."""
    rank = hvd.rank()
    unfinished = directory / f"{_name(step, rank)}.tmp"
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, directory / _name(step, rank))
    hvd.barrier()
    for old in _steps(directory, rank):
        if old != step:
            (directory / _name(old, rank)).unlink()


def load(directory: Path) -> dict[str, Any]:
    """This rank's state of the last step that every rank has; every rank calls it.

    Raises
    ------
    UsageError
        There is no such step; the same sentence on all ranks.
    """
    everyone = hvd.allgather_object(_steps(directory, hvd.rank()), name="study.checkpoint")
    common = set(everyone[0]).intersection(*everyone)
    if not common:
        raise UsageError(
            f"no checkpoint of {hvd.size()} workers in {directory}; start without --resume, or with as many workers"
            " as wrote it"
        )
    return dict(torch.load(directory / _name(max(common), hvd.rank()), weights_only=True))
