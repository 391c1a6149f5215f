"""``hvd_compress.keras`` with Keras 3, and what stock Horovod does there."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parallel.keras_models import batches, dot_model, fit, mean_of_output
from tests.parallel.reference import Reference
from tests.parallel.tf_ranks import LR, ON_RANK, SHAPES, assert_weights, expected_weights, gradients_of, hvd, noise

if ON_RANK:
    import keras
    import tensorflow as tf

    import hvd_compress.keras as hk
    from hvd_compress.keras import Compression

__all__ = ["hvd"]

pytestmark = [pytest.mark.launches(("mpi", 2)), pytest.mark.filterwarnings("ignore")]

Gather = Callable[[Any], list[Any]]
STEPS = 6
TOPK = "topk:density=0.05"
FEW = [TOPK, "randomk:density=0.1", "dgc:density=0.1,momentum=0.5,warmup_steps=4", "none", "fp16"]


def sgd(**settings: Any) -> Any:
    return keras.optimizers.SGD(LR, **settings)


def compiled(optimizer: Any, **settings: Any) -> Any:
    model = dot_model(keras)
    model.compile(optimizer, mean_of_output, **settings)
    return model


def weights_of(model: Any) -> list[Any]:
    return [np.asarray(weight) for weight in model.trainable_variables]


def expected(config: str, world: int, steps: int, **settings: Any) -> list[Any]:
    return expected_weights("none" if config == "fp16" else config, world, steps, **settings)


@pytest.mark.parametrize("config", FEW)
@pytest.mark.parametrize("settings", [{}, {"run_eagerly": True}, {"steps_per_execution": 3}], ids=str)
def test_fit(hvd: Any, rank: int, world: int, gather: Gather, config: str, settings: dict[str, Any]) -> None:
    compression = Compression.from_config(config)
    model = compiled(hk.DistributedOptimizer(sgd(), compression=compression), **settings)
    fit(model, batches(rank, 0, STEPS), callbacks=[hk.BroadcastGlobalVariables()])
    if config == "fp16":
        # Horovod rounds to 16 bits before it adds.
        for ours, theirs in zip(weights_of(model), expected(config, world, STEPS), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-3)
    else:
        assert_weights(weights_of(model), expected(config, world, STEPS), gather)


@pytest.mark.parametrize("options", [{"op": "Sum"}, {"gradient_predivide_factor": 4.0}], ids=str)
def test_reductions(hvd: Any, rank: int, world: int, gather: Gather, options: dict[str, Any]) -> None:
    average = "op" not in options
    options = {key: getattr(hvd, value) if key == "op" else value for key, value in options.items()}
    model = compiled(hk.DistributedOptimizer(sgd(), compression=Compression.from_config(TOPK), **options))
    fit(model, batches(rank, 0, STEPS))
    assert_weights(weights_of(model), expected(TOPK, world, STEPS, average=average), gather)


def test_weights_start_from_one_rank(hvd: Any, rank: int, gather: Gather) -> None:
    compression = Compression.from_config(TOPK)
    model = compiled(hk.DistributedOptimizer(keras.optimizers.Adam(LR), compression=compression))
    for weight in model.trainable_variables:
        weight.assign(tf.fill(weight.shape, float(rank)))
    fit(model, batches(rank, 0, 3), callbacks=[hk.BroadcastGlobalVariables(root_rank=1)])
    assert len(set(gather(b"".join(weight.tobytes() for weight in weights_of(model))))) == 1
    assert abs(weights_of(model)[1].mean() - 1.0) < 0.5


def test_own_loop(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    model, optimizer = dot_model(keras), hk.DistributedOptimizer(sgd(), compression=Compression.from_config(TOPK))

    @tf.function
    def step(inputs: Any) -> None:
        with tf.GradientTape() as tape:
            loss = mean_of_output(None, model(inputs))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for row in batches(rank, 0, STEPS):
        step(tf.constant(row[None]))
    assert_weights(weights_of(model), expected(TOPK, world, STEPS), gather)


def test_accumulated_gradients_are_exchanged_once(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    compression = Compression.from_config(TOPK)
    optimizer = hk.DistributedOptimizer(sgd(gradient_accumulation_steps=2), compression=compression)
    assert optimizer.get_config()["gradient_accumulation_steps"] == 2
    model = compiled(optimizer)
    fit(model, batches(rank, 0, STEPS))
    # Keras divides by the number of passes, which with top-k is as half the learning rate.
    reference = [weight / 2 for weight in expected(TOPK, world, STEPS // 2, passes=2)]
    assert_weights(weights_of(model), reference, gather)
    assert compression.stats().steps == STEPS // 2
    assert int(optimizer.iterations) == STEPS


@pytest.mark.parametrize("steps", [None, 2], ids=["every pass", "accumulated"])
def test_overflow_on_one_rank_skips_the_step_on_all(
    hvd: Any, rank: int, world: int, gather: Gather, steps: int | None
) -> None:
    """F031."""
    compression = Compression.from_config(TOPK)
    inner = keras.optimizers.LossScaleOptimizer(
        sgd(gradient_accumulation_steps=steps), initial_scale=1024.0, dynamic_growth_steps=3
    )
    optimizer = hk.DistributedOptimizer(inner, compression=compression)
    model = compiled(optimizer)
    inputs = batches(rank, 0, STEPS)
    if rank == 1:
        inputs[2, 5] = np.inf
    fit(model, inputs)
    reference, weights = Reference(TOPK, world), [np.zeros(shape, np.float32) for shape in SHAPES]
    passes = steps or 1
    for step in range(STEPS // passes):
        parts = range(passes * step, passes * (step + 1))
        if 2 in parts:
            continue
        for i, weight in enumerate(weights):
            summed = [sum(noise(part, r, i) for part in parts) / np.float32(passes) for r in range(world)]
            weight -= np.float32(LR) * reference.reduce(str(i), summed)
    assert_weights(weights_of(model), weights, gather)
    assert len(set(gather(float(np.asarray(optimizer.dynamic_scale))))) == 1
    saved = compression.state_dict()["tensors"]["0"]
    residual = saved["state"]["residual"] / saved["loss_scale"]
    np.testing.assert_allclose(residual, reference.states["0"][rank]["residual"], rtol=0, atol=1e-5)


def test_mixed_precision_puts_the_loss_scaler_inside(hvd: Any, rank: int, gather: Gather) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        compression = Compression.from_config(TOPK)
        optimizer = hk.DistributedOptimizer(sgd(), compression=compression)
        model = compiled(optimizer)
        assert model.optimizer is optimizer
        inputs = batches(rank, 0, STEPS)
        if rank == 1:
            inputs[2, 5] = np.inf
        fit(model, inputs)
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert all(np.isfinite(weight).all() and weight.any() for weight in weights_of(model))
    assert len(set(gather(b"".join(weight.tobytes() for weight in weights_of(model))))) == 1


def test_a_loss_scaler_outside_is_refused(hvd: Any, rank: int) -> None:
    inner = hk.DistributedOptimizer(sgd(), compression=Compression.from_config(TOPK))
    model = compiled(keras.optimizers.LossScaleOptimizer(inner))
    with pytest.raises(ValueError, match=r"must be inside: DistributedOptimizer\(LossScaleOptimizer\(optimizer\)\)"):
        fit(model, batches(rank, 0, 2))


@pytest.mark.parametrize("module", ["horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras"])
def test_stock_horovod_with_our_compression_is_refused(hvd: Any, module: str) -> None:
    """F088, F118: without us it trains, and reduces nothing."""
    front = importlib.import_module(module)
    with pytest.raises(ValueError, match=r"reduces nothing with Keras 3: use hvd_compress.keras.DistributedOptimizer"):
        front.DistributedOptimizer(sgd(), compression=Compression.from_config(TOPK))


def test_stock_horovod_reduces_nothing(hvd: Any, rank: int, gather: Gather) -> None:
    """Should a later Horovod do it, ours is no longer needed."""
    model = compiled(hvd.DistributedOptimizer(sgd()))
    fit(model, batches(rank, 0, 2))
    assert len(set(gather(b"".join(weight.tobytes() for weight in weights_of(model))))) == 2


def test_the_tape_takes_the_values_of_variables(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    """Horovod's own tape cannot take the variables of Keras 3 themselves."""
    model, compression = dot_model(keras), Compression.from_config(TOPK)
    values = [variable.value for variable in model.trainable_variables]

    @tf.function
    def step(inputs: Any) -> None:
        with tf.GradientTape() as tape:
            loss = mean_of_output(None, model(inputs))
        gradients = hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, values)
        for value, gradient in zip(values, gradients, strict=True):
            value.assign_sub(LR * gradient)

    for row in batches(rank, 0, STEPS):
        step(tf.constant(row[None]))
    assert_weights(weights_of(model), expected(TOPK, world, STEPS), gather)


def test_xla(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    """F085: one sentence, or with the callback nothing to do."""
    for callbacks in ([], [hk.BroadcastGlobalVariables()]):
        optimizer = hk.DistributedOptimizer(sgd(), compression=Compression.from_config(TOPK))
        model = compiled(optimizer, jit_compile=True)
        if callbacks:
            fit(model, batches(rank, 0, STEPS), callbacks=callbacks)
            assert_weights(weights_of(model), expected(TOPK, world, STEPS), gather)
        else:
            with pytest.raises(ValueError, match="set jit_compile=False"):
                fit(model, batches(rank, 0, STEPS))


def test_metrics_are_averaged(hvd: Any, rank: int, world: int) -> None:
    model = compiled(hk.DistributedOptimizer(sgd()))
    logs = {"loss": float(rank), "accuracy": 2.0 * rank}
    callback = hk.MetricAverage()
    callback.set_model(model)
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": (world - 1) / 2, "accuracy": world - 1.0}


@pytest.mark.parametrize("steps", [None, 2], ids=["plain", "accumulating"])
@pytest.mark.parametrize("kind", ["keras", "h5"])
def test_a_loaded_model_has_a_plain_optimizer_and_is_wrapped_again(
    hvd: Any, rank: int, gather: Gather, kind: str, steps: int | None, tmp_path: Path
) -> None:
    """F086."""
    settings = {"momentum": 0.5, "gradient_accumulation_steps": steps}
    model = compiled(hk.DistributedOptimizer(sgd(**settings), compression=Compression.from_config(TOPK)))
    fit(model, batches(rank, 0, 4))
    path = tmp_path / f"model.{kind}"
    model.save(path)
    own = {type(layer).__name__: type(layer) for layer in model.layers} | {"mean_of_output": mean_of_output}
    loaded = keras.models.load_model(path, custom_objects=own)
    assert type(loaded.optimizer) is keras.optimizers.SGD
    assert loaded.optimizer.gradient_accumulation_steps == steps
    # An .h5 file holds no more than the iterations and the learning rate, of a plain optimizer neither.
    kept = len(model.optimizer.variables) if kind == "keras" else 2
    assert len(loaded.optimizer.variables) == kept
    for ours, theirs in zip(loaded.optimizer.variables, model.optimizer.variables[:kept], strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    compression = Compression.from_config(TOPK)
    loaded.compile(hk.DistributedOptimizer(loaded.optimizer, compression=compression), mean_of_output)
    fit(loaded, batches(rank, 4, 8))
    assert compression.stats().compressed.compression_ratio > 10
    assert len(set(gather(b"".join(weight.tobytes() for weight in weights_of(loaded))))) == 1


@pytest.mark.parametrize("config", [TOPK, "dgc:density=0.1,momentum=0.5,warmup_steps=12", "qsgd"])
def test_backup_and_restore(hvd: Any, rank: int, gather: Gather, config: str, tmp_path: Path) -> None:
    def run(folder: Path, epochs: int, cut: bool = False) -> dict[str, Any]:
        compression = Compression.from_config(config)
        model = compiled(hk.DistributedOptimizer(sgd(), compression=compression))
        backup = hk.BackupAndRestore(folder, compression)

        class Cut(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if cut and epoch + 1 == epochs:
                    raise KeyboardInterrupt

        try:
            fit(model, batches(rank, 0, 2), epochs=epochs, callbacks=[hk.BroadcastGlobalVariables(), backup, Cut()])
        except KeyboardInterrupt:
            assert cut
        saved = compression.state_dict()["tensors"]
        states = {f"{k}/{name}": a.tobytes() for k, value in saved.items() for name, a in value["state"].items()}
        return {**states, **{str(i): weight.tobytes() for i, weight in enumerate(weights_of(model))}}

    whole = run(tmp_path / "whole", 10)
    run(tmp_path / "cut", 5, cut=True)
    assert (tmp_path / "cut" / f"rank-{rank}").is_dir()
    assert run(tmp_path / "cut", 10) == whole
    assert not (tmp_path / "cut" / f"rank-{rank}").exists()


def test_backup_of_another_model_is_refused(hvd: Any, rank: int, gather: Gather, tmp_path: Path) -> None:
    folder = tmp_path / f"rank-{rank}"
    folder.mkdir()
    np.savez(folder / "1.npz", **{"0": np.zeros((3, 4), np.float32)})
    model = compiled(hk.DistributedOptimizer(sgd()))
    with pytest.raises(ValueError, match=r"w0: the backup in .* has shape \(3, 4\), this model \(40, 30\)"):
        fit(model, batches(rank, 0, 2), callbacks=[hk.BackupAndRestore(tmp_path)])


def test_wrong_arguments(hvd: Any) -> None:
    for error, words, call in (
        (TypeError, "optimizer must be one of Keras 3, got builtins.str", lambda: hk.DistributedOptimizer("sgd")),
        (TypeError, "compression must come from", lambda: hk.DistributedOptimizer(sgd(), compression="topk")),
        (ValueError, "op must be hvd.Average or hvd.Sum", lambda: hk.DistributedOptimizer(sgd(), op=hvd.Max)),
        (
            ValueError,
            "gradient_predivide_factor must be a number > 0, got -1",
            lambda: hk.DistributedOptimizer(sgd(), gradient_predivide_factor=-1),
        ),
        (ValueError, "wrapped twice", lambda: hk.DistributedOptimizer(hk.DistributedOptimizer(sgd()))),
        (
            ValueError,
            "DGC applies momentum itself",
            lambda: hk.DistributedOptimizer(sgd(momentum=0.9), compression=Compression.dgc()).apply(
                list(map(tf.constant, gradients_of(0, 0))), dot_model(keras).trainable_variables
            ),
        ),
    ):
        with pytest.raises(error, match=words):
            call()
