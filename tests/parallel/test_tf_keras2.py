"""``horovod.tensorflow.keras`` with Keras 2, which is ``tf_keras`` under TF_USE_LEGACY_KERAS=1."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parallel.keras_models import batches, dot_model, fit, mean_of_output
from tests.parallel.reference import Reference
from tests.parallel.tf_ranks import LR, ON_RANK, SHAPES, assert_weights, expected_weights, hvd, noise

if ON_RANK:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import horovod.tensorflow.keras as hk
    import tensorflow as tf
    import tf_keras

    from hvd_compress.tensorflow import Compression

__all__ = ["hvd"]

pytestmark = [pytest.mark.launches(("mpi", 2)), pytest.mark.filterwarnings("ignore")]

Gather = Callable[[Any], list[Any]]
STEPS = 6
TOPK = "topk:density=0.05"
FEW = [TOPK, "randomk:density=0.1", "dgc:density=0.1,momentum=0.5,warmup_steps=4"]


def sgd(legacy: bool = False) -> Any:
    return (tf_keras.optimizers.legacy if legacy else tf_keras.optimizers).SGD(LR)


def compiled(compression: Any, legacy: bool = False, inner: Any = None, **settings: Any) -> Any:
    model = dot_model(tf_keras)
    own = {key: settings.pop(key) for key in ("op", "backward_passes_per_step") if key in settings}
    optimizer = hk.DistributedOptimizer(inner or sgd(legacy), compression=compression, **own)
    model.compile(optimizer, mean_of_output, **settings)
    return model


@pytest.mark.parametrize("legacy", [False, True], ids=["new", "legacy"])
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        *((config, {}) for config in FEW),
        (FEW[-1], {"run_eagerly": True}),
        (FEW[-1], {"steps_per_execution": 3}),
        (TOPK, {"op": "Sum"}),
    ],
    ids=str,
)
def test_fit(
    hvd: Any, rank: int, world: int, gather: Gather, config: str, legacy: bool, settings: dict[str, Any]
) -> None:
    average = "op" not in settings
    settings = {key: getattr(hvd, value) if key == "op" else value for key, value in settings.items()}
    model = compiled(Compression.from_config(config), legacy, **settings)
    callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0)]
    fit(model, batches(rank, 0, STEPS), callbacks=callbacks)
    assert_weights(model.get_weights(), expected_weights(config, world, STEPS, average=average), gather)


@pytest.mark.parametrize("legacy", [False, True], ids=["new", "legacy"])
def test_several_passes_for_a_step(hvd: Any, rank: int, world: int, gather: Gather, legacy: bool) -> None:
    model = compiled(Compression.from_config(TOPK), legacy, backward_passes_per_step=2)
    fit(model, batches(rank, 0, STEPS))
    assert_weights(model.get_weights(), expected_weights(TOPK, world, STEPS // 2, passes=2), gather)


def test_every_way_of_keras_is_one_trace_and_a_retrace_goes_on(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    compression = Compression.from_config(TOPK)
    model = compiled(compression)
    fit(model, batches(rank, 0, 3))
    model.make_train_function(force=True)
    fit(model, batches(rank, 3, STEPS))
    assert_weights(model.get_weights(), expected_weights(TOPK, world, STEPS), gather)
    assert compression.stats().steps == STEPS


class Custom:
    """Makes a Keras 2 model with a train step of its own."""

    @staticmethod
    def model(compression: Any) -> Any:
        class Model(tf_keras.Model):  # type: ignore[misc]
            def train_step(self, data: Any) -> Any:
                inputs, targets = data
                with tf.GradientTape() as tape:
                    loss = mean_of_output(targets, self(inputs))
                tape = hk_tape(tape, compression)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
                return {"loss": loss}

        plain = dot_model(tf_keras)
        return Model(plain.inputs, plain.outputs)


def hk_tape(tape: Any, compression: Any) -> Any:
    import horovod.tensorflow

    return horovod.tensorflow.DistributedGradientTape(tape, compression=compression)


def test_a_train_step_with_a_tape_makes_one_exchange(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    """F089."""
    compression = Compression.from_config(TOPK)
    model = Custom.model(compression)
    model.compile(sgd())
    fit(model, batches(rank, 0, STEPS))
    assert_weights(model.get_weights(), expected_weights(TOPK, world, STEPS), gather)
    assert compression.stats().steps == STEPS


def without_the_overflow(world: int) -> tuple[Reference, list[Any]]:
    """What all ranks reach if the third step, in which one of them overflows, is as if it had not been."""
    reference, weights = Reference(TOPK, world), [np.zeros(shape, np.float32) for shape in SHAPES]
    for step in [0, 1, 3, 4, 5]:
        for i, weight in enumerate(weights):
            weight -= np.float32(LR) * reference.reduce(str(i), [noise(step, r, i) for r in range(world)])
    return reference, weights


def overflowing(rank: int) -> Any:
    """Inputs whose third row overflows on one rank."""
    inputs = batches(rank, 0, STEPS)
    if rank == 1:
        inputs[2, 5] = np.inf
    return inputs


def assert_residual(compression: Any, reference: Reference, rank: int) -> None:
    saved = compression.state_dict()["tensors"]["0"]
    residual = saved["state"]["residual"] / saved["loss_scale"]
    np.testing.assert_allclose(residual, reference.states["0"][rank]["residual"], rtol=0, atol=1e-5)


def test_overflow_in_a_loop_of_ones_own(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(sgd(), initial_scale=1024.0, dynamic_growth_steps=3)
    compression, model = Compression.from_config(TOPK, loss_scale=optimizer), dot_model(tf_keras)

    @tf.function
    def step(inputs: Any) -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(mean_of_output(None, model(inputs)))
        scaled = hk_tape(tape, compression).gradient(loss, model.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(scaled)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for row in overflowing(rank):
        step(tf.constant(row[None]))
    reference, expected = without_the_overflow(world)
    assert_weights(model.get_weights(), expected, gather)
    assert_residual(compression, reference, rank)


@pytest.mark.parametrize("legacy", [False, True], ids=["new", "legacy"])
def test_overflow_on_one_rank_skips_the_step_on_all(
    hvd: Any, rank: int, world: int, gather: Gather, legacy: bool
) -> None:
    """F031, F032."""
    compression = Compression.from_config(TOPK)
    model = dot_model(tf_keras)
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(
        hk.DistributedOptimizer(sgd(legacy), compression=compression), initial_scale=1024.0, dynamic_growth_steps=3
    )
    model.compile(optimizer, mean_of_output)
    fit(model, overflowing(rank))
    reference, expected = without_the_overflow(world)
    assert_weights(model.get_weights(), expected, gather)
    assert compression.loss_scale is optimizer
    assert len({int(n) for n in gather(int(optimizer.iterations))}) == 1
    assert_residual(compression, reference, rank)


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
@pytest.mark.parametrize("legacy", [False, True], ids=["new", "legacy"])
def test_every_generation_of_optimizers_with_mixed_precision(
    hvd: Any, rank: int, world: int, gather: Gather, kind: str, legacy: bool
) -> None:
    """F032, F088."""
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        compression = Compression.from_config(TOPK)
        optimizers = tf_keras.optimizers.legacy if legacy else tf_keras.optimizers
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(
            hk.DistributedOptimizer(getattr(optimizers, kind)(0.01), compression=compression), initial_scale=64.0
        )
        layers = [tf_keras.layers.Dense(64, activation="tanh"), tf_keras.layers.Dense(40, dtype="float32")]
        model = tf_keras.Sequential([tf_keras.Input((40,)), *layers])
        model.compile(optimizer, "mse")
        rows = np.random.default_rng(rank).standard_normal((64, 40)).astype(np.float32)
        first = [hk.callbacks.BroadcastGlobalVariablesCallback(0)]
        losses = model.fit(rows, rows, batch_size=8, epochs=3, verbose=0, callbacks=first).history["loss"]
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    assert losses[-1] < losses[0]
    assert len(set(gather(b"".join(weight.tobytes() for weight in model.get_weights())))) == 1
    assert compression.stats().compressed.compression_ratio > 10


def test_weights_that_differ_at_first_are_equal_in_the_end(hvd: Any, rank: int, gather: Gather) -> None:
    """Horovod broadcasts after the first batch: the first residual comes from other weights on each rank."""
    model = compiled(Compression.from_config(TOPK))
    model.set_weights([np.full(shape, float(rank), np.float32) for shape in SHAPES])
    fit(model, batches(rank, 0, STEPS), callbacks=[hk.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert len(set(gather(b"".join(weight.tobytes() for weight in model.get_weights())))) == 1


def test_passes_with_an_unused_variable_are_not_horovods(hvd: Any, rank: int) -> None:
    """A limit of stock Horovod, the same with any compression."""
    for compression in (hvd.Compression.none, Compression.from_config(TOPK)):
        weights = [tf.Variable(tf.zeros((40, 40))), tf.Variable(tf.zeros(4))]
        optimizer = hk.DistributedOptimizer(sgd(), compression=compression, backward_passes_per_step=2)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights[0])
        with pytest.raises(AssertionError):
            optimizer.compute_gradients(loss, weights, tape)


@pytest.mark.parametrize("legacy", [False, True], ids=["new", "legacy"])
def test_the_other_order_stops_where_it_is_wrapped(hvd: Any, legacy: bool) -> None:
    """F032: stock Horovod cannot wrap a loss scaler, whatever the compression."""
    for compression in (hvd.Compression.none, Compression.from_config(TOPK)):
        scaled = tf_keras.mixed_precision.LossScaleOptimizer(sgd(legacy))
        with pytest.raises(TypeError, match="positional argument"):
            hk.DistributedOptimizer(scaled, compression=compression)


@pytest.mark.parametrize("kind", ["tf", "h5", "keras"])
def test_a_saved_model_loads_without_us(
    hvd: Any, rank: int, world: int, gather: Gather, kind: str, tmp_path: Path
) -> None:
    """F086."""
    model = compiled(Compression.from_config(TOPK))
    fit(model, batches(rank, 0, 3))
    path = tmp_path / {"tf": "model", "h5": "model.h5", "keras": "model.keras"}[kind]
    model.save(path)
    # Horovod's optimizers cannot be found again in a .keras file, with any compression.
    plain = tf_keras.models.load_model(
        path, custom_objects={"mean_of_output": mean_of_output, **layer_of(model)}, compile=kind != "keras"
    )
    assert kind == "keras" or type(plain.optimizer).__module__.startswith("tf_keras")
    for ours, theirs in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def layer_of(model: Any) -> dict[str, Any]:
    return {type(layer).__name__: type(layer) for layer in model.layers}


def test_a_loaded_model_goes_on_compressed(hvd: Any, rank: int, world: int, gather: Gather, tmp_path: Path) -> None:
    """F086."""
    model = compiled(Compression.from_config(TOPK))
    fit(model, batches(rank, 0, 3))
    path = tmp_path / "model.h5"
    model.save(path)
    compression = Compression.from_config(TOPK)
    loaded = hk.load_model(
        path, custom_objects={"mean_of_output": mean_of_output, **layer_of(model)}, compression=compression
    )
    assert int(loaded.optimizer.iterations) == 3
    fit(loaded, batches(rank, 3, 13))
    assert compression.stats().compressed.compression_ratio > 10
    assert int(loaded.optimizer.iterations) == 13
    assert len(set(gather(b"".join(w.tobytes() for w in loaded.get_weights())))) == 1
