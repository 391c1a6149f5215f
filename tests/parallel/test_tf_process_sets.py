"""Process sets of Horovod's TensorFlow front end: ranks 0 and 1 of three."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.parallel.tf_ranks import LR, ON_RANK, expected_weights, gradients_of, hvd

if ON_RANK:
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    import tensorflow as tf

    from tests.parallel.test_tf_tape import Model

__all__ = ["hvd"]

pytestmark = [pytest.mark.launches(("mpi", 3)), pytest.mark.filterwarnings("ignore:.*:UserWarning")]

STEPS = 4


@pytest.fixture(scope="module")
def pair(hvd: Any) -> Any:
    return hvd.add_process_set(hvd.ProcessSet([0, 1]))


@pytest.mark.parametrize(
    "config", ["topk:density=0.05", "randomk:density=0.1", "dgc:density=0.1,momentum=0.5", "powersgd:rank=2"]
)
def test_a_set_exchanges_among_its_own(
    hvd: Any, pair: Any, rank: int, gather: Callable[[Any], list[Any]], config: str
) -> None:
    model = Model(hvd, config, process_set=pair)
    weights = model.train(rank, tf.function(model.step), STEPS)
    everyone = gather([weight.tobytes() for weight in weights])
    assert everyone[0] == everyone[1]
    if rank < 2:
        for ours, theirs in zip(weights, expected_weights(config, 2, STEPS), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    else:
        # Horovod leaves the gradients of the others alone.
        for i, ours in enumerate(weights):
            own = -LR * np.sum([gradients_of(step, rank)[i] for step in range(STEPS)], 0)
            np.testing.assert_allclose(ours, own, rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", ["topk:density=0.05", "dgc:density=0.1"])
def test_three_ranks(hvd: Any, rank: int, config: str) -> None:
    model = Model(hvd, config)
    weights = model.train(rank, tf.function(model.step), STEPS)
    for ours, theirs in zip(weights, expected_weights(config, 3, STEPS), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)
