"""``hvd.DistributedOptimizer`` of horovod.tensorflow in graphs and sessions, as in TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.parallel.tf_ranks import LR, ON_RANK, SHAPES, assert_weights, expected_weights, gradients_of, hvd

if ON_RANK:
    import tensorflow as tf

    from hvd_compress.tensorflow import Compression

__all__ = ["hvd"]

pytestmark = [pytest.mark.launches(("mpi", 2)), pytest.mark.filterwarnings("ignore")]

Gather = Callable[[Any], list[Any]]
STEPS = 6
FEW = ["topk:density=0.05", "randomk:density=0.1", "dgc:density=0.1,momentum=0.5,warmup_steps=4", "qsgd", "powersgd"]


def train(hvd: Any, compression: Any, rank: int, monitored: bool = False, **settings: Any) -> list[Any]:
    """Minimise in a session and return the weights."""
    with tf.Graph().as_default():
        weights = [
            tf.compat.v1.get_variable(f"w{i}", shape, initializer=tf.compat.v1.zeros_initializer())
            for i, shape in enumerate(SHAPES)
        ]
        inputs = [tf.compat.v1.placeholder(tf.float32, shape) for shape in SHAPES]
        loss = tf.add_n([tf.reduce_sum(w * x) for w, x in zip(weights, inputs, strict=True)])
        plain = tf.compat.v1.train.GradientDescentOptimizer(LR)
        optimizer = hvd.DistributedOptimizer(plain, compression=compression, **settings)
        train_op = optimizer.minimize(loss)
        session = tf.compat.v1.train.MonitoredTrainingSession() if monitored else tf.compat.v1.Session()
        with session:
            if not monitored:
                session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()])
            for step in range(STEPS):
                session.run(train_op, dict(zip(inputs, gradients_of(step, rank), strict=True)))
            return list(session.run(weights))


@pytest.mark.parametrize("config", FEW)
@pytest.mark.parametrize("monitored", [False, True], ids=["session", "monitored"])
def test_sessions(hvd: Any, rank: int, world: int, gather: Gather, config: str, monitored: bool) -> None:
    weights = train(hvd, Compression.from_config(config), rank, monitored)
    assert_weights(weights, expected_weights(config, world, STEPS), gather)


@pytest.mark.parametrize("config", FEW)
def test_control_flow_of_tensorflow_1(hvd: Any, rank: int, world: int, gather: Gather, config: str) -> None:
    tf.compat.v1.disable_control_flow_v2()
    try:
        weights = train(hvd, Compression.from_config(config), rank)
    finally:
        tf.compat.v1.enable_control_flow_v2()
    assert_weights(weights, expected_weights(config, world, STEPS), gather)


def test_several_passes_for_a_step(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    weights = train(hvd, Compression.from_config(FEW[0]), rank, backward_passes_per_step=2)
    assert_weights(weights, expected_weights(FEW[0], world, STEPS // 2, passes=2), gather)


def test_sum(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    weights = train(hvd, Compression.from_config(FEW[0]), rank, op=hvd.Sum)
    assert_weights(weights, expected_weights(FEW[0], world, STEPS, average=False), gather)
