"""What a compressor of TensorFlow refuses, on every rank, and what it survives."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.parallel.tf_ranks import ON_RANK, SHAPES, expected_weights, gradients_of, hvd, noise

if ON_RANK:
    import tensorflow as tf

    from hvd_compress.tensorflow import Compression
    from tests.parallel.test_tf_tape import Model, variables

__all__ = ["hvd"]

pytestmark = [pytest.mark.launches(("mpi", 2)), pytest.mark.filterwarnings("ignore:.*:UserWarning")]

Gather = Callable[[Any], list[Any]]
TOPK = "topk:density=0.05"


def exchange(hvd: Any, compression: Any, model: list[Any], gradients: list[Any]) -> list[Any]:
    """Hand the gradients of a model over in a trace of its own."""

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(model, gradients, strict=True) if g is not None])
        return hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, model)

    return list(step())


@pytest.fixture
def model() -> list[Any]:
    return variables()


@pytest.fixture
def gradients(rank: int) -> list[Any]:
    return gradients_of(0, rank)


def test_gradients_in_another_order_are_refused(hvd: Any, model: list[Any], gradients: list[Any]) -> None:
    compression = Compression.from_config(TOPK)
    exchange(hvd, compression, model, gradients)
    with pytest.raises(ValueError, match=r"v2:0 \(variable 0\): until now there was v0:0 \(variable 0\)"):
        exchange(hvd, compression, model[::-1], gradients[::-1])


def test_fewer_gradients_are_refused(hvd: Any, model: list[Any], gradients: list[Any]) -> None:
    compression = Compression.from_config(TOPK)
    exchange(hvd, compression, model, gradients)
    with pytest.raises(ValueError, match=r"v1:0 \(variable 1\): had a dense gradient until now and has none"):
        exchange(hvd, compression, model, [gradients[0], None, gradients[2]])
    with pytest.raises(ValueError, match=r"until now there was v2:0 \(variable 2\)"):
        exchange(hvd, compression, model[:2], gradients[:2])


def test_a_second_model_is_refused_and_gets_a_clone(
    hvd: Any, rank: int, world: int, model: list[Any], gradients: list[Any]
) -> None:
    compression = Compression.from_config(TOPK)
    exchange(hvd, compression, model, gradients)
    other = variables()
    with pytest.raises(ValueError, match=r"v0:0 \(variable 0\): until now there was v0:0 .* clone\(\)"):
        exchange(hvd, compression, other, gradients)
    clone = compression.clone()
    exchange(hvd, clone, other, gradients)
    assert clone.policy == compression.policy
    assert clone.stats().total.sent_bytes == compression.stats().total.sent_bytes


def test_another_shape_is_refused(hvd: Any) -> None:
    compression = Compression.from_config(TOPK)
    hvd.allreduce(tf.ones((40, 40)), name="x", compression=compression)
    with pytest.raises(ValueError, match=r"x: was .*\(40, 40\).* until now, got .*\(40, 50\)"):
        hvd.allreduce(tf.ones((40, 50)), name="x", compression=compression)


def test_an_unknown_shape_is_refused(hvd: Any) -> None:
    compression = Compression.from_config(TOPK)

    @tf.function(input_signature=[tf.TensorSpec([None, 40])])
    def call(x: Any) -> Any:
        return hvd.allreduce(x, name="x", compression=compression)

    with pytest.raises(ValueError, match=r"x: the shape must be known where the function is traced, got \(None, 40\)"):
        call(tf.ones((40, 40)))


def test_momentum_twice_is_refused(hvd: Any) -> None:
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("w", (40, 40))
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.MomentumOptimizer(0.1, 0.9), compression=Compression.dgc()
        )
        with pytest.raises(ValueError, match=r"DGC applies momentum itself: set momentum=0 .* momentum=0.9"):
            optimizer.minimize(tf.reduce_sum(weight))


def test_xla_is_refused_with_one_sentence(hvd: Any, rank: int) -> None:
    """F085."""
    model = Model(hvd, TOPK)
    with pytest.raises(ValueError, match="compression does not work in a function of XLA: set jit_compile=False"):
        model.train(rank, tf.function(model.step, jit_compile=True))


def test_a_tensor_of_another_framework_is_refused() -> None:
    with pytest.raises(TypeError, match=r"got numpy.ndarray: for torch use hvd_compress.torch.Compression"):
        Compression.from_config(TOPK).compress(np.zeros((40, 40), np.float32))


def test_the_method_instead_of_a_compressor_is_explained(hvd: Any) -> None:
    """F118."""
    with pytest.raises(TypeError, match=r"got the method topk: call it, Compression.topk\(\)"):
        hvd.allreduce(tf.ones((40, 40)), name="x", compression=Compression.topk)


def test_one_rank_retraces_alone(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    """A placeholder that a graph could compute beforehand would hang here."""
    model = Model(hvd, TOPK)
    function = tf.function(lambda number, *gradients: model.step(*gradients))
    for number in range(6):
        function(number if rank else 0, *map(tf.constant, gradients_of(number, rank)))
    assert model.traces == (6 if rank else 1)
    weights = [variable.numpy() for variable in model.variables]
    for ours, theirs in zip(weights, expected_weights(TOPK, world, 6), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.watchdog(180)
def test_300_eager_steps_with_a_new_tape_each_take_no_more_memory(hvd: Any, rank: int) -> None:
    """F080."""
    model = Model(hvd, TOPK)
    gradients = [list(map(tf.constant, gradients_of(number, rank))) for number in range(3)]
    calls: list[str] = []
    locate = model.compression._keys.locate
    model.compression._keys.locate = lambda *args: calls.append("traced") or locate(*args)
    for number in range(300):
        model.step(*gradients[number % 3])
        if number == 20:
            gc.collect()
            before = resident_bytes()
    gc.collect()
    assert resident_bytes() - before < 5e6
    assert len(calls) == len(SHAPES)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_new_compressor_for_each_step_is_warned_of(hvd: Any, rank: int, model: list[Any]) -> None:
    gradients = gradients_of(0, rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            exchange(hvd, Compression.from_config(TOPK), model, gradients)
    assert [str(w.message) for w in caught if "second compressor for the same variables" in str(w.message)] == [
        "a second compressor for the same variables, v0:0 (variable 0) among them: what the first one kept for its "
        "next step is lost; make the compressor once, not in every step"
    ]


def test_warm_up_needs_no_new_trace_and_sends_fewer_bytes_at_each_phase(hvd: Any, rank: int) -> None:
    """F010."""
    model = Model(hvd, "dgc:density=0.01,warmup_steps=4,warmup_densities=[1.0,0.25,0.1,0.05]")
    function, sent = tf.function(model.step), []
    for number in range(6):
        function(*map(tf.constant, gradients_of(number, rank)))
        sent.append(model.compression.stats().step.sent_bytes)
    assert model.traces == 1
    assert sent[0] > sent[1] > sent[2] > sent[3] > sent[4] == sent[5]


def test_draws_differ_from_step_to_step(hvd: Any, rank: int) -> None:
    compression = Compression.randomk(density=0.1, mode="unbiased", error_feedback=False)
    function = tf.function(lambda x: hvd.allreduce(x, name="x", compression=compression))
    chosen = [np.flatnonzero(function(tf.ones((40, 40))).numpy()).tolist() for _ in range(3)]
    assert len({str(indices) for indices in chosen}) == 3


def test_not_finite_on_one_rank_is_not_finite_on_all_and_harms_no_residual(
    hvd: Any, rank: int, world: int, gather: Gather
) -> None:
    compression = Compression.from_config(TOPK)
    function = tf.function(lambda x: hvd.allreduce(x, name="x", compression=compression))
    function(tf.constant(noise(0, rank, 0)))
    before = compression.state_dict()["tensors"]["call/x"]["state"]["residual"]
    bad = noise(1, rank, 0)
    bad[3, 4] = np.nan if rank else bad[3, 4]
    assert not np.isfinite(function(tf.constant(bad)).numpy()).all()
    after = compression.state_dict()["tensors"]["call/x"]["state"]["residual"]
    assert np.isfinite(after).all()
    if rank:
        np.testing.assert_array_equal(after, before)
    assert np.isfinite(function(tf.constant(noise(2, rank, 0))).numpy()).all()


def test_empty_tensor(hvd: Any) -> None:
    compression = Compression.from_config("topk:density=0.1,min_elements=0,min_ndim=0")
    assert hvd.allreduce(tf.zeros((0, 4)), name="x", compression=compression).shape == (0, 4)
