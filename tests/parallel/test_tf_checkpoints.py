"""Saving and going on with TensorFlow: 10 steps, new objects and 10 more are 20 steps, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parallel.configs import CODECS
from tests.parallel.tf_ranks import ON_RANK, gradients_of, hvd

if ON_RANK:
    import tensorflow as tf

    from hvd_compress.tensorflow import Compression
    from tests.parallel.test_tf_tape import Model

__all__ = ["hvd"]

pytestmark = [pytest.mark.launches(("mpi", 2)), pytest.mark.filterwarnings("ignore:.*:UserWarning")]

Gather = Callable[[Any], list[Any]]
TOPK = "topk:density=0.05"
STATEFUL = ("topk", "randomk-unbiased", "dgc-warmup", "jointsq-model")


def train(model: Model, rank: int, begin: int, end: int) -> None:
    function = tf.function(model.step)
    for step in range(begin, end):
        function(*map(tf.constant, gradients_of(step, rank)))


def bits(model: Model) -> dict[str, Any]:
    """All that must be equal in the end."""
    saved = model.compression.state_dict()["tensors"]
    states = {f"{k}/{name}": a.tobytes() for k, value in saved.items() for name, a in value["state"].items()}
    weights = {variable.name: variable.numpy().tobytes() for variable in model.variables}
    return {**states, **weights, **{key: (value["step"], value["budget"]) for key, value in saved.items()}}


def checkpoint_of(model: Model) -> Any:
    return tf.train.Checkpoint(compressor=model.compression, variables=model.variables)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_checkpoint_holds_the_compressor(hvd: Any, rank: int, name: str, tmp_path: Path) -> None:
    config = CODECS[name]
    whole, first, second = Model(hvd, config), Model(hvd, config), Model(hvd, config)
    train(whole, rank, 0, 20)
    train(first, rank, 0, 10)
    path = checkpoint_of(first).write(str(tmp_path / f"rank-{rank}"))
    checkpoint_of(second).read(path).assert_consumed()
    train(second, rank, 10, 20)
    assert bits(second) == bits(whole)


def test_restoring_takes_a_run_back(hvd: Any, rank: int, tmp_path: Path) -> None:
    model = Model(hvd, TOPK)
    train(model, rank, 0, 5)
    checkpoint = checkpoint_of(model)
    path = checkpoint.write(str(tmp_path / f"rank-{rank}"))
    ends = []
    for _ in range(2):
        train(model, rank, 5, 9)
        ends.append(bits(model))
        checkpoint.read(path)
    assert ends[0] == ends[1]


def test_state_of_other_shapes_is_refused(hvd: Any, rank: int) -> None:
    model, other = Model(hvd, TOPK), Model(hvd, TOPK)
    train(model, rank, 0, 2)
    saved = model.compression.state_dict()
    saved["tensors"]["2"] = {**saved["tensors"]["2"], "shape": [30, 50]}
    with pytest.raises(ValueError, match=r"v2:0 \(variable 2\): the saved state is for shape \(30, 50\), .*\(30, 40\)"):
        model.compression.load_state_dict(saved)
    other.compression.load_state_dict(saved)
    with pytest.raises(ValueError, match=r"v2:0 \(variable 2\): the saved state is for shape \[30, 50\]"):
        train(other, rank, 0, 1)


def test_state_of_another_codec_is_refused(hvd: Any, rank: int) -> None:
    model, other = Model(hvd, TOPK), Model(hvd, "topk:density=0.1")
    train(model, rank, 0, 2)
    other.compression.load_state_dict(model.compression.state_dict())
    with pytest.raises(ValueError, match=r"v0:0 \(variable 0\): the saved state is for codec .*0.05.*, this run has"):
        train(other, rank, 0, 1)


def test_foreign_bytes_are_refused(hvd: Any) -> None:
    compression = Compression.from_config(TOPK)
    with pytest.raises(ValueError, match="not the bytes of a compressor's state"):
        compression.deserialize(b"something else")
    with pytest.raises(ValueError, match=r"must come from a compressor's state_dict\(\), got list"):
        compression.load_state_dict([])


def test_saved_state_is_a_copy(hvd: Any, rank: int) -> None:
    model = Model(hvd, TOPK)
    train(model, rank, 0, 2)
    residual = model.compression.state_dict()["tensors"]["0"]["state"]["residual"]
    kept = residual.copy()
    train(model, rank, 2, 4)
    np.testing.assert_array_equal(residual, kept)
