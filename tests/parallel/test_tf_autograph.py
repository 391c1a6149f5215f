"""What AutoGraph makes of a compressor: nothing of what runs in every step."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from hvd_compress.worker import Worker
from tests.parallel.tf_ranks import ON_RANK, gradients_of, hvd

if ON_RANK:
    import tensorflow as tf

    from hvd_compress.tensorflow import Compression

__all__ = ["hvd"]

pytestmark = pytest.mark.launches(("mpi", 2))


@pytest.mark.parametrize("part", ["send", "receive"])
def test_work_on_arrays_is_not_converted(hvd: Any, rank: int, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compression, work, callers = Compression.from_config("topk:density=0.05"), getattr(Worker, part), []

    def seen(*arguments: Any) -> Any:
        callers.append(sys._getframe(1).f_globals["__name__"])
        return work(*arguments)

    monkeypatch.setattr(Worker, part, seen)

    @tf.function
    def step(gradient: Any) -> Any:
        return hvd.allreduce(gradient, name="w", compression=compression)

    step(tf.constant(gradients_of(0, rank)[0]))
    assert [name.rpartition(".")[0] for name in callers] == ["hvd_compress.tensorflow"]
