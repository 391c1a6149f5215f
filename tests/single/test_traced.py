"""Codecs inside ``tf.function``: traced once, and giving NumPy's bytes for every kind of gradient."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from hvd_compress import QSGD, Cast, Codec, ErrorFeedback, JointSQ, RandomK, Reduction, Site, TensorSpec, TopK
from hvd_compress.exchange import receive, send
from hvd_compress.ops import ops_for
from hvd_compress.payload import Payload
from hvd_compress.wire import pack
from tests.cases import CODECS, codecs, label, ops_of, to_numpy

SITE, SPEC = Site("fc.weight", step=7), TensorSpec((20, 55), "float32")
RANDOM = np.random.default_rng(5).standard_normal(SPEC.shape).astype(np.float32)
POISONED = np.where(np.arange(1100).reshape(SPEC.shape) == 777, np.float32(np.nan), RANDOM)
DENORMALS = (np.arange(-550, 550, dtype=np.float32) * np.float32(1e-42)).reshape(SPEC.shape)
GRADIENTS = {
    "random": RANDOM,
    "poisoned": POISONED,
    "huge": RANDOM * np.float32(1e37),
    "zeros": np.zeros_like(RANDOM),
    "denormals": DENORMALS,
    "some denormals": np.where(np.abs(RANDOM) < 1, DENORMALS, RANDOM),
}


class Wire:
    """A collective of one rank: what is sent, and what is said to have arrived."""

    sent: Any = None
    arrived: Any = None

    def allgather(self, buffer: Any, name: str) -> str:
        self.sent = buffer
        return name

    def allreduce(self, array: Any, name: str) -> Any:
        return array

    def wait(self, handle: Any) -> Any:
        return self.arrived if self.arrived is not None else handle


class Sums(NamedTuple):
    """An exchange of two phases that has ended."""

    payload: Payload

    def finish(self) -> Payload:
        return self.payload


class Exchange:
    """Both halves of a codec's exchange, each a function of arrays alone."""

    def __init__(self, codec: Codec, backend: str) -> None:
        self.codec, self.ops, self.traces = codec, ops_of(backend), 0
        self.pending: Any = None

    def send(self, x: Any, state: Any) -> tuple[Any, ...]:
        """What the stock allreduce gets, the row or what there is of two phases, and the new state."""
        self.traces += 1
        wire = Wire()
        array, self.pending, state = send(self.codec, self.ops, x, state, SITE, wire)
        if self.codec.reduction is Reduction.TWO_PHASE:
            # A graph must be handed what another one has computed.
            payload = self.pending.handle.finish()
            return array, (*payload.parts, self.ops.cast(payload.flag, "int64"), payload.source), dict(state)
        rows = [row for row in (wire.sent, self.pending.source) if row is not None]
        return array, tuple(rows), dict(state)

    def receive(self, array: Any, rows: tuple[Any, ...], state: Any) -> tuple[Any, ...]:
        """The result and the new state."""
        self.traces += 1
        wire = Wire()
        wire.arrived = rows[0] if rows else None
        pending = self.pending
        if self.codec.reduction is Reduction.SUM and rows:
            pending = pending._replace(source=rows[0])
        if self.codec.reduction is Reduction.TWO_PHASE:
            pending = pending._replace(handle=Sums(Payload(rows[:2], rows[2], source=rows[3])))
        result, state = receive(self.ops, array, pending, state, wire)
        return result, dict(state)

    def init(self) -> dict[str, Any]:
        return dict(self.codec.init(self.ops, SPEC))


class TracedExchange(Exchange):
    """The same in two graphs, which do not know how long the rows are that arrive."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec, "tensorflow")
        self._send = tf.function(super().send, autograph=False, reduce_retracing=True)
        self._receive = tf.function(super().receive, autograph=False)

    def send(self, x: Any, state: Any) -> tuple[Any, ...]:
        return self._send(tf.convert_to_tensor(x), state)  # type: ignore[no-any-return]

    def receive(self, array: Any, rows: tuple[Any, ...], state: Any) -> tuple[Any, ...]:
        if self.traces == 1 and self.codec.reduction is Reduction.GATHER:
            unknown = tuple(tf.TensorSpec((None,), tf.uint8) for _ in rows)
            self._receive = self._receive.get_concrete_function(array, unknown, state)
        return self._receive(array, rows, state)  # type: ignore[no-any-return]


@pytest.mark.parametrize("divisor", [3, 7, 255])
def test_graphs_round_a_quotient_once(divisor: int) -> None:
    """Left to itself a graph multiplies by the reciprocal of a constant."""
    x, ops = np.random.default_rng(0).standard_normal(10_000).astype(np.float32), ops_of("tensorflow")
    naive = tf.function(lambda x: x / divisor, autograph=False)(tf.constant(x))
    ours = tf.function(lambda x: ops.divide(x, divisor), autograph=False)(tf.constant(x))
    assert bits(ours) == bits(x / np.float32(divisor)) != bits(naive)


@cache
def traced_exchange(codec: Codec) -> TracedExchange:
    """One for all tests: tracing takes a second."""
    return TracedExchange(codec)


def bits(results: Any) -> list[str]:
    """Arrays of a nest as hex, in the order of their keys."""
    return [to_numpy(x).tobytes().hex() for x in tf.nest.flatten(results)]


@codecs
def test_graphs_traced_once_give_numpy_s_bytes_states_and_results(codec: Codec) -> None:
    numpy, traced = Exchange(codec, "numpy"), traced_exchange(codec)
    ours, theirs = traced.init(), numpy.init()
    for what, gradient in GRADIENTS.items():
        with np.errstate(all="ignore"):
            *expected, theirs = numpy.send(gradient, theirs)
            *sent, ours = traced.send(gradient, ours)
            assert bits(sent) == bits(expected), what
            assert bits(ours) == bits(theirs), what
            result, theirs = numpy.receive(*expected, theirs)
            received, ours = traced.receive(*sent, ours)
        np.testing.assert_array_equal(to_numpy(received), result, what)
        assert bits(ours) == bits(theirs), what
    assert traced.traces == 2


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec.reduction is Reduction.GATHER], ids=label)
def test_graphs_refuse_damaged_rows_with_our_own_words(codec: Codec) -> None:
    traced = traced_exchange(codec)
    array, (row,), state = traced.send(RANDOM, traced.init())
    traced.receive(array, (row,), state)
    for position in (0, 1, 40, -1):
        damaged = to_numpy(row)
        damaged[position] ^= 0x40
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"damaged on the way|out of step|do not fit"):
            traced.receive(array, (tf.constant(damaged),), state)
    message = f"{len(row) - 8} bytes from 1 ranks do not fit"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message if codec.fixed_size else "do not fit|damaged"):
        traced.receive(array, (row[:-8],), state)


@pytest.mark.parametrize(
    "codec",
    [TopK(density=0.1), ErrorFeedback(Cast(dtype="bfloat16")), RandomK(density=0.1), QSGD(packing="elias"), JointSQ()],
    ids=label,
)
def test_functions_give_numpy_s_results_also_in_graphs_of_tensorflow_1(codec: Codec) -> None:
    """There ``==`` compares objects."""
    numpy = Exchange(codec, "numpy")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        traced, x = TracedExchange(codec), tf.compat.v1.placeholder(tf.float32, SPEC.shape)
        *sent, state = traced.send(x, traced.init())
        received, _ = traced.receive(*sent, state)
        for what, gradient in GRADIENTS.items():
            *expected, state = numpy.send(gradient, numpy.init())
            with np.errstate(all="ignore"):
                result, _ = numpy.receive(*expected, state)
            ours = session.run([tf.nest.flatten(sent), received], {x: gradient})
            assert bits(ours[0]) == bits(expected), what
            np.testing.assert_array_equal(ours[1], result, what)


@codecs
def test_variables_are_gradients_and_state_too(codec: Codec) -> None:
    """As a skin may keep them."""
    eager, variables = Exchange(codec, "tensorflow"), Exchange(codec, "tensorflow")
    *expected, state = eager.send(tf.constant(RANDOM), eager.init())
    held = {key: tf.Variable(value) for key, value in variables.init().items()}
    *sent, after = variables.send(tf.Variable(RANDOM), held)
    assert bits([sent, after]) == bits([expected, state])


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(TypeError, match=r"or a TensorFlow tensor, got tensorflow\..*IndexedSlices"):
        ops_for(tf.IndexedSlices(tf.zeros((1, 2)), tf.zeros(1, tf.int32)))


def test_graphs_that_would_leave_checks_out_are_refused() -> None:
    ops = ops_of("tensorflow")
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match=r"call this in a tf\.function"):
        ops.require(tf.compat.v1.placeholder(tf.bool, ()), "never")


def test_functions_that_autograph_rewrites_give_the_same_bytes() -> None:
    """As users write them: ``@tf.function`` without more."""
    codec, ops = ErrorFeedback(TopK(density=0.1)), ops_of("tensorflow")

    @tf.function
    def encode(x: Any, state: Any) -> Any:
        payload, state = codec.encode(ops, x, state, SITE)
        return pack(ops, payload), dict(state)

    arguments = tf.constant(RANDOM.reshape(-1)), dict(codec.init(ops, SPEC))
    assert bits(encode(*arguments)) == bits(encode.python_function(*arguments))
