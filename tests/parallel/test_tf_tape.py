"""``hvd.DistributedGradientTape`` and ``hvd.allreduce`` of horovod.tensorflow, in every way that they are used."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.parallel.configs import CODECS
from tests.parallel.reference import Reference
from tests.parallel.tf_ranks import (
    LR,
    ON_RANK,
    SHAPES,
    assert_weights,
    expected_weights,
    gradients_of,
    hvd,
    noise,
)

if ON_RANK:
    import tensorflow as tf

    from hvd_compress.tensorflow import Compression
    from hvd_compress.tensorflow.host import Host

__all__ = ["hvd"]

pytestmark = [pytest.mark.launches(("mpi", 2)), pytest.mark.filterwarnings("ignore:.*:UserWarning")]

Gather = Callable[[Any], list[Any]]
STEPS = 5
TOPK = "topk:density=0.05"
FEW = [TOPK, "randomk:density=0.1", "dgc:density=0.1,momentum=0.5,warmup_steps=4", "cast:dtype=float16"]
FEW += ["powersgd:rank=2"]


def variables() -> list[Any]:
    return [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(SHAPES)]


class Model:
    """Variables whose gradients are what `gradients_of` says, trained by SGD with Horovod's tape."""

    def __init__(self, hvd: Any, config: str, **settings: Any) -> None:
        self.hvd = hvd
        self.variables = variables()
        self.compression = Compression.from_config(config)
        self.settings = settings
        self.generic = False
        self.traces = 0

    def step(self, *gradients: Any) -> None:
        self.traces += 1
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(self.variables, gradients, strict=True)])
        tape = self.hvd.DistributedGradientTape(tape, compression=self.compression, **self.settings)
        for variable, combined in zip(
            self.variables, tape.gradient(loss, self.variables, use_generic_names=self.generic), strict=True
        ):
            variable.assign_sub(LR * tf.convert_to_tensor(combined))

    def train(self, rank: int, step: Any = None, steps: int = STEPS) -> list[Any]:
        for number in range(steps):
            (step or self.step)(*map(tf.constant, gradients_of(number, rank)))
        return [variable.numpy() for variable in self.variables]


def eagerly(model: Model, rank: int) -> list[Any]:
    return model.train(rank)


def test_in_a_graph_a_gradient_is_encoded_while_another_is_on_its_way(
    hvd: Any, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def noted(name: str) -> Any:
        method = getattr(Host, name)

        def call(*arguments: Any) -> Any:
            calls.append(name)
            return method(*arguments)

        return call

    for name in ("encode", "decode"):
        monkeypatch.setattr(Host, name, noted(name))
    in_a_function(Model(hvd, TOPK), rank)
    assert calls.count("encode") == calls.count("decode") == 2 * STEPS
    # One after another they would take turns.
    assert any(pair == ("encode", "encode") for pair in pairwise(calls))


@pytest.mark.parametrize("config", FEW)
def test_several_steps_in_one_graph(hvd: Any, rank: int, world: int, gather: Gather, config: str) -> None:
    model = Model(hvd, config)
    inputs = [tf.stack([gradients_of(step, rank)[i] for step in range(STEPS)]) for i in range(len(SHAPES))]

    @tf.function
    def train(*stacked: Any) -> None:
        # The gradients do not depend on the weights: nothing makes a step wait for the one before.
        for step in tf.range(STEPS):
            model.step(*[gradient[step] for gradient in stacked])

    train(*inputs)
    weights = [variable.numpy() for variable in model.variables]
    assert_weights(weights, expected_weights(config, world, STEPS), gather)


def in_a_function(model: Model, rank: int, step: Any = None) -> list[Any]:
    weights = model.train(rank, tf.function(step or model.step))
    assert model.traces == 1
    return weights


def retraced(model: Model, rank: int) -> list[Any]:
    function = tf.function(lambda number, *gradients: model.step(*gradients))
    for number in range(STEPS):
        # A Python number makes a trace for each of its values.
        function(number // 2, *map(tf.constant, gradients_of(number, rank)))
    assert model.traces == 3
    return [variable.numpy() for variable in model.variables]


def in_a_loop_of_the_graph(model: Model, rank: int) -> list[Any]:
    stacked = [tf.stack([noise(number, rank, i) for number in range(STEPS)]) for i in range(len(SHAPES))]

    @tf.function
    def loop() -> None:
        for number in tf.range(STEPS):
            model.step(*[gradients[number] for gradients in stacked])

    loop()
    assert model.traces == 1
    return [variable.numpy() for variable in model.variables]


def functions_run_eagerly(model: Model, rank: int) -> list[Any]:
    tf.config.run_functions_eagerly(True)
    try:
        return model.train(rank, tf.function(model.step))
    finally:
        tf.config.run_functions_eagerly(False)


def with_generic_names(model: Model, rank: int) -> list[Any]:
    model.generic = True
    return in_a_function(model, rank)


def in_another_order_on_each_rank(model: Model, rank: int) -> list[Any]:
    def late(gradient: Any, seconds: float) -> Any:
        def wait(array: Any) -> Any:
            time.sleep(seconds)
            return array

        return tf.ensure_shape(tf.numpy_function(wait, [gradient], tf.float32, stateful=False), gradient.shape)

    def step(*gradients: Any) -> None:
        delays = [0.05 * (i if rank % 2 else len(gradients) - i) for i in range(len(gradients))]
        model.step(*map(late, gradients, delays))

    return in_a_function(model, rank, step)


WAYS = [
    in_another_order_on_each_rank,
    eagerly,
    in_a_function,
    retraced,
    in_a_loop_of_the_graph,
    functions_run_eagerly,
    with_generic_names,
]


@pytest.mark.launches(("mpi", 2), ("gloo", 2))
@pytest.mark.parametrize("config", FEW)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_ways_of_calling_the_tape(
    hvd: Any, rank: int, world: int, gather: Gather, way: Callable[[Model, int], list[Any]], config: str
) -> None:
    weights = way(Model(hvd, config), rank)
    assert_weights(weights, expected_weights(config, world, STEPS), gather)


# Of these the shares depend on all tensors together.
ALONE = {name: config for name, config in CODECS.items() if "scope=model" not in config and name != "none"}


@pytest.mark.launches(("mpi", 2), ("mpi", 4))
@pytest.mark.parametrize("config", list(ALONE.values()), ids=list(ALONE))
def test_every_codec(hvd: Any, rank: int, world: int, gather: Gather, config: str) -> None:
    model = Model(hvd, config)
    weights = in_a_function(model, rank)
    # Horovod adds 16 bits of more than two ranks in an order of its own.
    near = 1e-3 if world > 2 and "float16" in config and "bfloat16" not in config else 1e-6
    assert_weights(weights, expected_weights(config, world, STEPS), gather, near)
    saved = model.compression.state_dict()["tensors"]
    assert all(np.isfinite(array).all() for tensor in saved.values() for array in tensor["state"].values())


@pytest.mark.parametrize("config", ["topk:density=0.1,scope=model,rebudget_steps=2", CODECS["jointsq-model"]])
def test_budgets_are_shared_over_the_model(hvd: Any, rank: int, world: int, gather: Gather, config: str) -> None:
    model = Model(hvd, config)
    model.train(rank, tf.function(model.step))
    budgets = {key: saved["budget"] for key, saved in model.compression.state_dict()["tensors"].items()}
    assert set(budgets) == {"0", "2"}
    assert None not in budgets.values()
    assert len({str(theirs) for theirs in gather(budgets)}) == 1
    assert len({str(w) for w in gather([variable.numpy().tobytes() for variable in model.variables])}) == 1


@pytest.mark.parametrize("config", FEW)
@pytest.mark.parametrize("groups", [1, 2, "lists"])
def test_groups(hvd: Any, rank: int, world: int, gather: Gather, config: str, groups: Any) -> None:
    """F065."""
    model = Model(hvd, config)
    model.settings["groups"] = [model.variables[:2], model.variables[2:]] if groups == "lists" else groups
    weights = in_a_function(model, rank)
    assert_weights(weights, expected_weights(config, world, STEPS), gather)


@pytest.mark.parametrize("config", list(CODECS.values()), ids=list(CODECS))
def test_grouped_gradients_reach_their_own_variables(hvd: Any, world: int, gather: Gather, config: str) -> None:
    """F065: variable i has the gradient i + 1 everywhere, one has none, and the small ones go dense."""
    shapes = [(40, 30), (4,), (40, 30), (30, 40), (5,), (60, 20), (40, 40), (7,)]
    # Horovod tells the variables of a group apart by their names.
    model = [tf.Variable(tf.zeros(shape), name=f"v{i}") for i, shape in enumerate(shapes)]
    for groups in (2, [[model[0], model[1], model[6]], [model[2], model[4]]]):
        compression, reference = Compression.from_config(config), Reference(config, world)

        @tf.function
        def step(compression: Any = compression, groups: Any = groups) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.add_n([(i + 1.0) * tf.reduce_sum(v) for i, v in enumerate(model[:7])])
            return hvd.DistributedGradientTape(tape, compression=compression, groups=groups).gradient(loss, model)

        combined = step()
        assert combined[7] is None
        for i, shape in enumerate(shapes[:7]):
            expected = reference.reduce(str(i), [np.full(shape, i + 1.0, np.float32)] * world)
            np.testing.assert_allclose(combined[i].numpy(), expected, rtol=1e-3 if "float16" in config else 1e-6)
            assert len(set(gather(combined[i].numpy().tobytes()))) == 1


@pytest.mark.parametrize("config", [TOPK, "randomk:density=0.1", "cast:dtype=bfloat16"])
@pytest.mark.parametrize("settings", [{"op": "Sum"}, {"gradient_predivide_factor": 4.0}], ids=str)
def test_reductions(hvd: Any, rank: int, world: int, gather: Gather, config: str, settings: dict[str, Any]) -> None:
    settings = {key: getattr(hvd, value) if key == "op" else value for key, value in settings.items()}
    weights = in_a_function(Model(hvd, config, **settings), rank)
    assert_weights(weights, expected_weights(config, world, STEPS, average="op" not in settings), gather)


@pytest.mark.parametrize("op", ["Adasum", "Min", "Max", "Product"])
def test_other_reductions_are_refused_before_anything_is_sent(hvd: Any, rank: int, op: str) -> None:
    model = Model(hvd, TOPK, op=getattr(hvd, op))
    with pytest.raises(ValueError, match=f"op must be hvd.Average or hvd.Sum with compression, got hvd.{op}"):
        model.train(rank, tf.function(model.step))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("config", FEW)
def test_dtypes(hvd: Any, rank: int, world: int, gather: Gather, config: str, dtype: str) -> None:
    """F055, F081."""
    compression = Compression.from_config(config)
    weights = [tf.Variable(tf.zeros(shape, dtype)) for shape in SHAPES]

    @tf.function
    def step(*gradients: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(w * g) for w, g in zip(weights, gradients, strict=True)])
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        return tape.gradient(loss, weights)

    reference = Reference(config, world)
    for number in range(3):
        everyone = [[noise(number, r, i, dtype) for i in range(len(SHAPES))] for r in range(world)]
        combined = step(*map(tf.constant, everyone[rank]))
        for i, ours in enumerate(combined):
            assert ours.dtype == dtype
            assert ours.shape == SHAPES[i]
            expected = reference.reduce(str(i), [mine[i] for mine in everyone])
            # Horovod's own sums of 16 bits are rounded in an order of their own.
            near = 2e-3 if dtype in ("float16", "bfloat16") else 1e-6
            np.testing.assert_allclose(ours.numpy().astype(float), expected.astype(float), rtol=near, atol=near)
            assert len(set(gather(ours.numpy().tobytes()))) == 1


@pytest.mark.launches(("mpi", 2), ("gloo", 2))
def test_calls_by_name(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    compression, reference = Compression.from_config(TOPK), Reference(TOPK, world)
    function = tf.function(lambda x: hvd.allreduce(x, name="in_a_function", compression=compression))
    for number in range(3):
        for call, name in (
            (lambda x: hvd.allreduce(x, name="an/array", compression=compression), "an/array"),
            (function, "in_a_function"),
        ):
            combined = call(tf.constant(noise(number, rank, 0)))
            expected = reference.reduce(f"call/{name}", [noise(number, r, 0) for r in range(world)])
            np.testing.assert_allclose(combined.numpy(), expected, rtol=0, atol=1e-6)
    sent = compression.stats().tensors
    assert set(sent) == {"call/an/array", "call/in_a_function"}


@pytest.mark.parametrize("way", [lambda call: call, tf.function if ON_RANK else None], ids=["eager", "function"])
def test_calls_by_name_are_counted_each_time_and_no_more(hvd: Any, rank: int, world: int, way: Any) -> None:
    compression = Compression.from_config(TOPK)
    small = way(lambda x: hvd.allreduce(x, name="small", compression=compression))
    large = way(lambda x: hvd.allreduce(x, name="large", compression=compression))
    for number in range(3):
        for _ in range(2):
            large(tf.constant(noise(number, rank, 0)))
        ours = small(tf.constant(noise(number, rank, 1)))
        expected = np.mean([noise(number, r, 1) for r in range(world)], 0)
        np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-6)
    stats = compression.stats()
    assert {name: counts.dense_bytes for name, counts in stats.tensors.items()} == {
        "call/small": 3 * 30 * 4,
        "call/large": 6 * 1200 * 4,
    }
    assert stats.tensors["call/small"].sent_bytes == 3 * 30 * 4
    assert stats.compressed.dense_bytes == 6 * 1200 * 4


def test_grouped_calls_by_name(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    compression, reference = Compression.from_config(TOPK), Reference(TOPK, world)
    for number in range(3):
        combined = hvd.grouped_allreduce(
            [tf.constant(noise(number, rank, i)) for i in range(3)], name="g", compression=compression
        )
        for i, ours in enumerate(combined):
            expected = reference.reduce(f"call/g.{i}", [noise(number, r, i) for r in range(world)])
            np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-6)


def test_call_without_a_name_is_refused(hvd: Any) -> None:
    compression = Compression.from_config(TOPK)
    with pytest.raises(ValueError, match="name must be given"):
        hvd.allreduce(tf.ones((40, 40)), compression=compression)


@pytest.mark.parametrize("config", list(CODECS.values())[1:], ids=list(CODECS)[1:])
def test_shape_and_dtype_of_odd_gradients_come_back(hvd: Any, rank: int, config: str) -> None:
    """F053, F055: also of bfloat16, which Horovod itself cannot add."""
    compression = Compression.from_config(f"{config}{',' if ':' in config else ':'}min_elements=0,min_ndim=0")
    for dtype in ("float32", "float16", "bfloat16"):
        for shape in ((), (1,), (1, 1, 1, 1), (3, 0)):
            ones = tf.ones(shape, dtype)
            combined = hvd.allreduce(ones, name=f"{dtype}{len(shape)}", compression=compression)
            assert (combined.dtype, combined.shape) == (ones.dtype, ones.shape)
            assert np.isfinite(combined.numpy().astype(np.float32)).all()


def test_integers_pass_through(hvd: Any, world: int) -> None:
    compression = Compression.from_config("topk:density=0.1,min_elements=0,min_ndim=0")
    total = hvd.allreduce(tf.range(2000), op=hvd.Sum, name="integers", compression=compression)
    np.testing.assert_array_equal(total.numpy(), world * np.arange(2000))


def test_two_models_each_with_its_own_compressor(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    # Two that are equal must not be taken for one.
    configs = (TOPK, "dgc:density=0.1", TOPK)
    models = [Model(hvd, config) for config in configs]

    @tf.function
    def step(*gradients: Any) -> None:
        for model in models:
            model.step(*gradients)

    for number in range(STEPS):
        step(*map(tf.constant, gradients_of(number, rank)))
    for model, config in zip(models, configs, strict=True):
        assert_weights([v.numpy() for v in model.variables], expected_weights(config, world, STEPS), gather)


def test_sparse_gradients_pass_through_or_are_compressed_as_dense_ones(
    hvd: Any, rank: int, world: int, gather: Gather
) -> None:
    table = tf.Variable(tf.zeros((50, 40)))
    rows = [3, 7, 3] if rank else [1, 7, 9]
    own = np.zeros((50, 40), np.float32)
    np.add.at(own, rows, 1.0)
    everyone = gather(own)
    for dense in (False, True):
        compression = Compression.topk(density=0.06, error_feedback=False)

        def exchange(compression: Any = compression, dense: bool = dense) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, rows))
            tape = hvd.DistributedGradientTape(tape, compression=compression, sparse_as_dense=dense)
            return tape.gradient(loss, [table])[0]

        # The gradient comes with an unknown shape from the one and a known one from the other.
        for way in (exchange, tf.function(exchange)):
            combined = tf.convert_to_tensor(way())
            assert combined.shape == (50, 40)
            np.testing.assert_allclose(combined.numpy(), np.mean(everyone, 0), rtol=0, atol=1e-6)
        assert bool(compression.stats().tensors) == dense


def test_rows_are_merged(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    """F063."""
    from hvd_compress.tensorflow import merge_rows

    table = tf.Variable(tf.zeros((50, 4)))
    rows = np.random.default_rng(rank).integers(10 * rank, 10 * rank + 10, 1000)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, rows) * tf.constant(noise(0, rank, 0).reshape(-1)[:4]))
    plain = tape.gradient(loss, table)
    merged = merge_rows(plain)
    assert merged.values.shape[0] <= 10
    combined = hvd.allreduce(merged, name="rows")
    assert combined.values.shape[0] <= 10 * world
    dense = np.mean(gather(tf.convert_to_tensor(plain).numpy()), 0)
    np.testing.assert_allclose(tf.convert_to_tensor(combined).numpy(), dense, rtol=0, atol=1e-6 * np.abs(dense).max())


def test_zeros_for_unconnected_gradients_are_not_horovods(hvd: Any) -> None:
    """F084: a limit of stock Horovod, whose tape does not take the argument."""
    weight = tf.Variable(tf.zeros((40, 40)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight)
    tape = hvd.DistributedGradientTape(tape, compression=Compression.from_config(TOPK))
    with pytest.raises(TypeError, match="unconnected_gradients"):
        tape.gradient(loss, [weight], unconnected_gradients=tf.UnconnectedGradients.ZERO)


def test_unused_variable(hvd: Any, rank: int, world: int, gather: Gather) -> None:
    """F084."""
    model = variables()
    compression = Compression.from_config(TOPK)

    @tf.function
    def step(first: Any, last: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model[0] * first) + tf.reduce_sum(model[2] * last)
        return hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, model)

    reference = Reference(TOPK, world)
    for number in range(3):
        combined = step(tf.constant(noise(number, rank, 0)), tf.constant(noise(number, rank, 2)))
        assert combined[1] is None
        for i in (0, 2):
            expected = reference.reduce(str(i), [noise(number, r, i) for r in range(world)])
            np.testing.assert_allclose(combined[i].numpy(), expected, rtol=0, atol=1e-6)


def test_a_variable_of_one_worker_is_left_alone(hvd: Any, rank: int, world: int) -> None:
    """F079."""
    combined = []
    for compression in (Compression.from_config("topk:density=1.0"), hvd.Compression.none):
        model = variables()
        with tf.GradientTape() as tape:
            gradients = [tf.constant(g) for g in gradients_of(0, rank)]
            loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(model, gradients, strict=True)])
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        tape.register_local_source(model[0])
        combined.append([g.numpy() for g in tape.gradient(loss, model)])
        if compression is not hvd.Compression.none:
            # Horovod leaves it out of what it hands over: the first one is now the small one.
            assert set(compression.stats().tensors) == {"0", "1"}
            assert set(compression.state_dict()["tensors"]) == {"1"}
    for ours, plain in zip(*combined, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-6)


def test_the_graph_holds_no_route_through_the_host_where_it_is_not_wanted(
    hvd: Any, rank: int, world: int, gather: Gather, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_COMPRESS_TF_NUMPY", "0")
    for config in (*FEW, "jointsq:bits_per_entry=1.0", "qsgd"):
        model = Model(hvd, config)
        function = tf.function(model.step)
        weights = model.train(rank, function)
        assert_weights(weights, expected_weights(config, world, STEPS), gather)
        graph = function.get_concrete_function(*map(tf.constant, gradients_of(0, rank))).graph
        kinds = {operation.type for operation in operations_of(graph)}
        assert "EagerPyFunc" in kinds
        assert "PyFunc" not in kinds


def operations_of(graph: Any) -> list[Any]:
    """Return all operations of a graph and of the functions it calls."""
    return [*graph.get_operations(), *(node for f in graph.as_graph_def().library.function for node in as_ops(f))]


class _Node:
    def __init__(self, kind: str) -> None:
        self.type = kind


def as_ops(function: Any) -> list[_Node]:
    return [_Node(node.op) for node in function.node_def]
