"""JointSQ's payload without a look at a number, against the one that is made by looking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import JointSQ, TensorSpec
from hvd_compress.codecs._streams import Stream, stream_bits
from hvd_compress.wire import pack
from tests.cases import SITE, ops_of, to_backend, to_numpy
from tests.single.codecs.test_allocation import inputs

COSTS = (0.0, 6.0, 30.0)


def wire(codec: JointSQ, backend: str, x: np.ndarray[Any, Any]) -> bytes:
    ops = ops_of(backend)
    payload, _ = codec.encode(ops, to_backend(backend, x), {}, SITE)
    return to_numpy(pack(ops, payload)).tobytes()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("seed", range(5))
def test_payloads_are_those_of_numpy(rounding: str, seed: int) -> None:
    """Small arrays with ties, thresholds, denormals, huge numbers; budgets that hold nothing up to everything."""
    for x, draws in inputs(24, seed):
        codec = JointSQ(
            bits_per_entry=float(draws.uniform(0.1, 8.0)),
            index_cost_bits=COSTS[draws.integers(len(COSTS))],
            rounding=rounding,
            payload_budget=int(draws.integers(16, 100)) * 4,
        )
        assert wire(codec, "device", x).hex() == wire(codec, "numpy", x).hex(), (codec, x.tolist())


@pytest.mark.parametrize("bits_per_entry", [0.032, 0.32, 2.0, 8.0])
def test_payloads_of_larger_tensors_are_those_of_numpy(bits_per_entry: float) -> None:
    x = np.random.default_rng(0).standard_t(2, 300_000).astype(np.float32)
    codec = JointSQ(bits_per_entry=bits_per_entry)
    assert wire(codec, "device", x) == wire(codec, "numpy", x)


def test_entries_that_were_sent_are_counted_on_the_device() -> None:
    x, spec = np.random.default_rng(0).standard_normal(5000).astype(np.float32), TensorSpec((5000,), "float32")
    ops, numpy, codec = ops_of("device"), ops_of("numpy"), JointSQ()
    payload, _ = codec.encode(ops, to_backend("device", x), {}, SITE)
    expected, _ = codec.encode(numpy, x, {}, SITE)
    assert int(payload.kept_entries(ops, spec.numel)) == expected.kept_entries(numpy, spec.numel)
    decoded = to_numpy(codec.decode(ops, payload, spec, SITE))
    np.testing.assert_array_equal(decoded, codec.decode(numpy, expected, spec, SITE))


@pytest.mark.parametrize("backend", ["numpy", "device"])
def test_streams_lie_where_they_begin(backend: str) -> None:
    ops = ops_of(backend)

    def stream(start: int, width: int, count: int, numbers: list[int]) -> Stream:
        return Stream(*(ops.constant(part, "int64") for part in ((start,), (width,), (count,), numbers)))

    streams = [
        stream(0, 3, 2, [5, 6, 7]),
        stream(8, 0, 3, [1, 1, 1]),
        stream(8, 5, 0, [1, 1]),
        stream(8, 4, 2, [15, 9]),
        stream(20, 1, 3, [1, 0, 1, 1]),
    ]
    bits = to_numpy(stream_bits(ops, 24, streams)).tolist()
    assert bits == [1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0]
