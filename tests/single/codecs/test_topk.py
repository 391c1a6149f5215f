"""What is special about top-k."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import Payload, Site, TensorSpec, TopK
from hvd_compress.codecs._sparse import kept_count
from hvd_compress.wire import pack, unpack
from tests.cases import backends, ops_of, to_backend, to_numpy

SITE = Site("w", 0)


@pytest.mark.parametrize(
    ("n", "density", "k"),
    [
        (100, 0.29, 29),
        (7, 0.01, 1),
        (1000, 0.001, 1),
        (10, 1.0, 10),
        (100, 0.07, 7),
        (1, 0.5, 1),
        (1000, 0.0015, 2),
        (1000, 0.0025, 2),
        (0, 0.5, 0),
    ],
)
def test_kept_counts(n: int, density: float, k: int) -> None:
    assert kept_count(density, n) == k


@backends
@pytest.mark.parametrize("n", [1, 10, 1000])
def test_density_1_is_exact_and_every_density_is_idempotent(backend: str, n: int) -> None:
    ops, x, spec = (
        ops_of(backend),
        np.random.default_rng(n).standard_normal(n).astype(np.float32),
        TensorSpec((n,), "float32"),
    )
    for density in (1.0, 0.3):
        codec = TopK(density=density)
        once = codec.decode(ops, codec.encode(ops, to_backend(backend, x), {}, SITE)[0], spec, SITE)
        twice = codec.decode(ops, codec.encode(ops, once, {}, SITE)[0], spec, SITE)
        np.testing.assert_array_equal(to_numpy(once), to_numpy(twice))
        if density == 1.0:
            assert to_numpy(once).tobytes() == x.tobytes()


@pytest.mark.parametrize("density", [0.01, 0.1, 0.5])
def test_error_is_at_most_the_share_of_what_is_left_out_and_the_smallest_possible(density: float) -> None:
    ops, n = ops_of("numpy"), 1000
    x, spec = np.random.default_rng(1).standard_cauchy(n).astype(np.float32), TensorSpec((n,), "float32")
    codec = TopK(density=density)
    decoded = codec.decode(ops, codec.encode(ops, x, {}, SITE)[0], spec, SITE)
    squares = np.sort(x.astype(np.float64) ** 2)
    error, k = np.sum((x - decoded).astype(np.float64) ** 2), kept_count(density, n)
    assert error <= (1 - k / n) * squares.sum()
    assert error == pytest.approx(squares[: n - k].sum())


@backends
def test_sixteen_bit_gradients_keep_full_indices(backend: str) -> None:
    """F059, F035: one entry that is not zero at the end of 100,000."""
    ops, x = ops_of(backend), np.zeros(100_000, np.float16)
    x[99_999] = 2
    codec = TopK(density=1e-5)
    payload, _ = codec.encode(ops, to_backend(backend, x), {}, SITE)
    decoded = to_numpy(codec.decode(ops, payload._replace(kept=None), TensorSpec(x.shape, "float16"), SITE))
    assert np.flatnonzero(decoded).tolist() == [99_999]


def damaged(change: dict[int, int]) -> tuple[TopK, np.ndarray, TensorSpec]:
    """A packed payload with some bytes replaced."""
    ops, codec = ops_of("numpy"), TopK(density=1 / 3)
    packed = pack(ops, codec.encode(ops, np.array([0.5, -2, 0, 1.5, -0.1, 3], np.float32), {}, SITE)[0])
    for position, value in change.items():
        packed[position] = value
    return codec, packed, TensorSpec((6,), "float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: 2}, "unknown version"),
        ({1: 3}, "flags must be 0, 1 or 2"),
        ({2: 1}, "header does not fit"),
        ({4: 3}, "header does not fit"),
        ({1: 1}, "header does not fit"),
        ({11: 0x7F, 10: 0x80}, "a value is not finite"),
        ({16: 0x26}, "does not hold 2 ones"),
        ({16: 0x42}, "an index is not below 6"),
    ],
)
def test_payloads_that_cannot_be_ours_are_refused(change: dict[int, int], message: str) -> None:
    codec, packed, spec = damaged(change)
    ops = ops_of("numpy")
    with pytest.raises(ValueError, match=message):
        codec.decode(ops, unpack(ops, packed, codec, spec), spec, SITE)


def test_payloads_of_another_length_are_refused() -> None:
    codec, packed, spec = damaged({})
    with pytest.raises(ValueError, match="payload: 16 bytes, expected 17"):
        unpack(ops_of("numpy"), packed[:-1], codec, spec)


def test_indices_that_this_rank_chose_need_no_decoding() -> None:
    ops, codec, spec = ops_of("numpy"), TopK(density=0.5), TensorSpec((4,), "float32")
    payload = Payload((np.float32([1, 2]).view(np.uint8), np.zeros(1, np.uint8)), np.int64(0), (2,), np.array([1, 3]))
    assert codec.decode(ops, payload, spec, SITE).tolist() == [0, 1, 0, 2]
