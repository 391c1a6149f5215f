"""ARC-Top-k: exact rows where nothing is lost in the sketch, its mean length, the last row, residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import EF21, ErrorFeedback, Site, TensorSpec
from hvd_compress.codecs import ARCTopK
from hvd_compress.generator import SKETCH, generator_key
from hvd_compress.ops.products import Products
from tests.cases import backends, ops_of, to_backend
from tests.single.codecs.exchanges import exchange

WIRE = {
    "arctopk density=0.1 row_size=16 sketch_size=2": (
        "6729103f64aadd3fc5e5163e5941293e713f843e619eaebe509d1b4055b441c000610c3e007b273e00dd453e00b7673e"
        "809c863e80499b3e80fab13e80c7ca3e80c8e53ec08a013f4063113fc079223f40da343fc090483f40a95d3fc02f743f"
    ),
    "error_feedback (arctopk density=0.3 row_size=9)": (
        "2e641ec0cce65c4081e8ce3f7031aa3fdf8701bf95b1843f49cc0c3fd6a1f73ed010f13c01e1243ed410cf3dd8acc83d"
        "389f1e3c3e6a7b3ae923123b7a9fd83b1550a03e37c988becefb68bc4642323d9bb5e83fdcc6bbbfcc015dbe93e92e3d"
        "c0e3ac4002838dc0bcc35ebf53bc25be9bbb39c0dae1dbbf6ad0d5be878b90bfc02ff4bf40a9ddbfc090c8bf40dab4bf"
        "c079a2bf406391bfc08a81bf80c865bf80c74abf80fa313f80c74a3f80c8653fc08a813f4063913fc079a23f40dab43f"
        "c090c83f40a9dd3f"
    ),
}
Array = np.ndarray[Any, Any]


def noise(seed: int, n: int = 400) -> Array:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


@backends
def test_with_the_identity_as_sketch_the_longest_rows_of_the_mean_arrive(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 17 of the specification."""
    identity = to_backend(backend, np.eye(8, dtype=np.float32).reshape(-1))
    monkeypatch.setattr(Products, "gaussian", lambda self, count, key: identity)
    gradients = [noise(rank) for rank in range(3)]
    mean = np.mean(gradients, 0).reshape(50, 8)
    longest = np.sort(np.argsort(-(mean**2).sum(1))[:5])
    for result in exchange(ARCTopK(density=0.1, row_size=8, sketch_size=8), gradients, [None] * 3, [0] * 3, backend):
        rows = result.reshape(50, 8)
        assert np.flatnonzero(rows.any(1)).tolist() == longest.tolist()
        np.testing.assert_allclose(rows[longest], mean[longest], rtol=1e-5, atol=1e-7)


def test_squared_length_in_the_sketch_is_that_of_the_row_times_its_size_on_average() -> None:
    """Section 17 of the specification."""
    ops, row, lengths = ops_of("numpy"), noise(1, 32), []
    for step in range(4000):
        draws = ops.gaussian(32 * 4, generator_key(0, Site("w", step), SKETCH)).reshape(32, 4)
        lengths.append(float(((row @ draws) ** 2).sum()))
    assert np.mean(lengths) == pytest.approx(4 * float((row**2).sum()), rel=0.05)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 63])
def test_the_last_row_may_be_short(n: int) -> None:
    codec = ARCTopK(density=1.0, row_size=8, sketch_size=1)
    (result,) = exchange(codec, [noise(2, n)], [None], [0])
    np.testing.assert_array_equal(result, noise(2, n))
    assert codec.part_nbytes(TensorSpec((n,), "float32")) == (4 * -(-n // 8), 32 * -(-n // 8))


@pytest.mark.parametrize("wrapper", [ErrorFeedback, EF21])
@pytest.mark.parametrize("n", [400, 397])
def test_ranks_stay_equal_and_lose_nothing(wrapper: Any, n: int) -> None:
    codec, states = wrapper(ARCTopK(density=0.1, row_size=16)), [None] * 3
    given, received = np.zeros(n), np.zeros(n)
    for step in range(8):
        gradients = [noise(10 * step + rank, n) for rank in range(3)]
        results = exchange(codec, gradients, states, [step] * len(states))
        assert {result.tobytes() for result in results} == {results[0].tobytes()}
        given, received = given + np.mean(gradients, 0), received + results[0]
        if wrapper is ErrorFeedback:
            held = np.mean([state["residual"] for state in states], 0)  # type: ignore[index]
            np.testing.assert_allclose(received + held, given, atol=1e-5)
        else:
            known = np.mean([state["known"] for state in states], 0)  # type: ignore[index]
            np.testing.assert_allclose(results[0], known, atol=1e-5)


def test_a_bad_entry_that_nobody_chose_is_seen_by_all() -> None:
    gradients = [noise(rank) for rank in range(2)]
    gradients[1][200] = np.inf
    states: list[Any] = [None] * 2
    with np.errstate(all="ignore"):
        results = exchange(ErrorFeedback(ARCTopK(density=0.1, row_size=16)), gradients, states, [0] * len(states))
    assert not any(np.isfinite(result).all() for result in results)
    np.testing.assert_array_equal(states[0]["residual"], gradients[0])
    assert not states[1]["residual"].any()


def test_size_is_that_of_the_specification() -> None:
    """Section 20 of the specification."""
    assert ARCTopK().part_nbytes(TensorSpec((25_600_000,), "float32")) == (1_600_000, 1_024_000)
