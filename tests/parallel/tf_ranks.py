"""Horovod's TensorFlow front end in place of torch's: import `hvd` into a test file to have all fixtures use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.parallel.harness import FOLDER
from tests.parallel.reference import Reference

ON_RANK = FOLDER in os.environ
if ON_RANK:
    # One thread each, as the ranks of torch have.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

Array = np.ndarray[Any, Any]

SHAPES = ((40, 30), (30,), (30, 40))
"""The variables of the models in these tests: two large ones and a small one between them."""

LR = 0.125


@pytest.fixture(scope="session")
def hvd() -> Iterator[ModuleType]:
    """``horovod.tensorflow``, initialised once for each launch."""
    if not ON_RANK:
        pytest.fail("a case with several ranks needs pytest.mark.launches")
    import horovod.tensorflow

    horovod.tensorflow.init()
    yield horovod.tensorflow
    horovod.tensorflow.shutdown()


def noise(step: int, rank: int, position: int, dtype: str = "float32") -> Array:
    """Return the gradient of a variable at a step of a rank."""
    generator = np.random.default_rng([step, rank, position])
    return generator.standard_normal(SHAPES[position]).astype(np.float32).astype(dtype)


def gradients_of(step: int, rank: int) -> list[Array]:
    """Return the gradients of all variables."""
    return [noise(step, rank, position) for position in range(len(SHAPES))]


def expected_weights(
    config: str,
    world: int,
    steps: int,
    *,
    average: bool = True,
    passes: int = 1,
    positions: Sequence[int] = (0, 1, 2),
) -> list[Array]:
    """Return the weights that plain SGD reaches from zero with the gradients that `Reference` combines.

    With several passes a step, the gradients of so many are added up before each exchange.
    """
    reference = Reference(config, world, average)
    weights = [np.zeros(SHAPES[position], np.float32) for position in positions]
    for step in range(steps):
        for weight, position in zip(weights, positions, strict=True):
            summed = [
                sum(noise(passes * step + part, rank, position) for part in range(passes)) for rank in range(world)
            ]
            weight -= np.float32(LR) * reference.reduce(str(position), [np.asarray(g) for g in summed])
    return weights


def assert_weights(
    weights: Sequence[Any], expected: Sequence[Array], gather: Callable[[Any], list[Any]], near: float = 1e-6
) -> None:
    """Check weights against the reference, and that all ranks have the same bits."""
    mine = [np.asarray(weight) for weight in weights]
    for ours, theirs in zip(mine, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=near * max(1.0, float(np.abs(theirs).max())))
    digests = gather([weight.tobytes() for weight in mine])
    assert all(digest == digests[0] for digest in digests)
    assert any(weight.any() for weight in mine)
