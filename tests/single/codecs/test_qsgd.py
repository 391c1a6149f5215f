"""What is special about QSGD: the published codes, its variance bounds, its packings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_compress import QSGD, ErrorFeedback, TensorSpec, TopKQSGD
from hvd_compress.codecs._packing import PACKINGS, pack_levels, packed_nbytes, unpack_levels
from hvd_compress.wire import pack, unpack
from tests.cases import backends, ops_of
from tests.single.codecs.payloads import SITE, X, decoded, decoded_after, wire


@backends
@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (QSGD(bits=2, seed=1234), "0100000008000000 cdcc4c3f c8d9"),
        (QSGD(bits=3, seed=1234), "0100000008000000 cdcc4c3f 682ceb"),
        (QSGD(bits=4, seed=1234), "0100000008000000 cdcc4c3f a1c2d5f6"),
        (QSGD(bits=5, seed=1234), "0100000008000000 cdcc4c3f 8216ac76fb"),
        (QSGD(bits=7, seed=1234), "0100000008000000 cdcc4c3f 08e8058c7adffe"),
        (QSGD(bits=8, seed=1234), "0100000008000000 cdcc4c3f 10a02fc050df6fff"),
        (QSGD(bits=4, bucket_size=4, seed=1234), "0100000008000000 cdcccc3ecdcc4c3f b2f5d5f6"),
        (QSGD(levels=4, packing="radix", seed=1234), "0100000008000000 cdcc4c3f b1dc6602"),
        (TopKQSGD(density=3 / 8, bits=4, seed=1234), "0100000003000000 cdcc4c3f e0 6d0f"),
    ],
)
def test_published_payloads(backend: str, codec: Any, payload: str) -> None:
    assert wire(codec, X, backend) == payload.replace(" ", "")


@pytest.mark.parametrize(
    ("codec", "nbytes"),
    [
        (QSGD(bits=2), 6_600_008),
        (QSGD(bits=3), 9_800_008),
        (QSGD(bits=4), 13_000_008),
        (QSGD(bits=5), 16_200_008),
        (QSGD(bits=7), 22_600_008),
        (QSGD(bits=8), 25_800_008),
        (TopKQSGD(density=0.001, bits=3), 48_058),
        (TopKQSGD(density=0.001, bits=4), 51_258),
        (TopKQSGD(density=0.001, bits=8), 64_058),
    ],
)
def test_published_sizes(codec: Any, nbytes: int) -> None:
    assert codec.payload_nbytes(TensorSpec((25_600_000,), "float32")) == nbytes


def test_elias_codes_have_the_published_lengths() -> None:
    """Numbers 1, 2, 3, 4, 5, 8, 17, 65 take 1, 3, 3, 5, 5, 7, 9, 13 bits, and a sign bit above 1."""
    ops = ops_of("numpy")
    for number, bits in zip((1, 2, 3, 4, 5, 8, 17, 65), (1, 3, 3, 5, 5, 7, 9, 13), strict=True):
        levels = np.full(8, number - 1, np.int64)
        packed = pack_levels(ops, levels * 0, levels, 127, "elias")
        assert packed.size == bits + (number > 1)


def test_elias_code_by_hand() -> None:
    """m = 0, -1, 2: codes 1; 010 and sign 1; 011 and sign 0, least significant bit first."""
    ops = ops_of("numpy")
    packed = pack_levels(ops, np.array([0, 1, 0]), np.array([0, 1, 2]), 3, "elias")
    bits = "1" + "010" + "1" + "011" + "0"
    assert packed.tobytes() == bytes([int(bits[7::-1], 2), int(bits[8], 2)])


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_packing_round_trips_in_the_declared_size(data: st.DataObject) -> None:
    ops = ops_of("numpy")
    s, packing = data.draw(st.integers(1, 255)), data.draw(st.sampled_from(PACKINGS))
    signed = np.array(data.draw(st.lists(st.integers(-s, s), max_size=200)), np.int64)
    packed = pack_levels(ops, (signed < 0).astype(np.int64), np.abs(signed), s, packing)
    assert packed.size <= packed_nbytes(signed.size, s, packing)
    assert packing == "elias" or packed.size == packed_nbytes(signed.size, s, packing)
    negative, levels = unpack_levels(ops, packed, signed.size, s, packing)
    np.testing.assert_array_equal(np.where(negative > 0, -levels, levels), signed)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("levels", [1, 2, 127, 128, 255])
def test_the_largest_value_arrives_with_its_sign_at_every_number_of_levels(levels: int, packing: str) -> None:
    """F108: no wrap to the other sign."""
    x = np.array([4.0, -4.0, 0.0, 1.0], np.float32)
    np.testing.assert_allclose(decoded(QSGD(levels=levels, packing=packing), x)[:3], [4, -4, 0], rtol=1.2e-7)


@pytest.mark.parametrize("levels", [0, -1, 256])
def test_other_numbers_of_levels_are_refused(levels: int) -> None:
    """F108: 0 levels rejected."""
    with pytest.raises(ValueError, match=r"QSGD: levels must be an integer in \[1, 255\] or null, got"):
        QSGD(levels=levels)


def test_bits_and_levels_together_are_refused() -> None:
    with pytest.raises(ValueError, match="QSGD: bits must be left out where levels is given, got 8 and 4"):
        QSGD(bits=8, levels=4)


def test_l2_norm_is_not_fed_back() -> None:
    with pytest.raises(ValueError, match="inner must be a codec that loses something and does not scale up"):
        ErrorFeedback(QSGD(norm="l2"))


@pytest.mark.parametrize(
    ("s", "norm", "expected"),
    [
        (3, "l2", 5.02),
        (3, "max", 0.271),
        (15, "l2", 0.376),
        (15, "max", 0.0072),
        (63, "l2", 0.0218),
        (63, "max", 0.0004),
    ],
)
def test_variance_is_as_published_and_below_the_bound(s: int, norm: str, expected: float) -> None:
    """Section 5, item 6: Gaussian buckets of 512; each s has its own draw, in the order 3, 15, 63."""
    draws = np.random.default_rng(0)
    x = [draws.standard_normal(512) for _ in range(3)][(3, 15, 63).index(s)].astype(np.float32)
    size = float(np.sum(x.astype(np.float64) ** 2))
    trials = [decoded(QSGD(levels=s, norm=norm), x, SITE._replace(step=step)) for step in range(300)]
    variance = float(np.mean([np.sum((trial.astype(np.float64) - x) ** 2) for trial in trials])) / size
    bound = min(512 / s**2, 512**0.5 / s) if norm == "l2" else 512 * float(np.abs(x).max()) ** 2 / (4 * s**2) / size
    assert variance <= bound
    assert variance == pytest.approx(expected, rel=0.1, abs=6e-5)


def test_variance_by_hand() -> None:
    """[3, -4] with the L2 norm 5 and s = 4: y = [2.4, 3.2], variance (5/4)^2 (0.24 + 0.16)."""
    x = np.array([3, -4], np.float32)
    errors = [decoded(QSGD(levels=4, norm="l2"), x, SITE._replace(step=step)) - x for step in range(4000)]
    assert np.mean(np.sum(np.square(errors), axis=1)) == pytest.approx(0.625, rel=0.05)


def test_buckets_of_zeros_and_of_tiny_numbers_are_exactly_zero() -> None:
    x = np.concatenate([np.zeros(4), np.full(4, 1e-31), np.ones(3), [-1e-38]]).astype(np.float32)
    assert decoded(QSGD(bucket_size=4), x).tolist() == [0.0] * 8 + [1.0] * 3 + [0.0]


def test_rank_and_step_draw_their_own_rounding() -> None:
    x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    sites = [SITE, SITE._replace(rank=1), SITE._replace(step=8), SITE._replace(name="other")]
    assert len({decoded(QSGD(), x, site).tobytes() for site in sites}) == 4


def test_density_1_is_qsgd() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    np.testing.assert_array_equal(decoded(TopKQSGD(density=1.0), x), decoded(QSGD(), x))


def test_kept_entries_are_rounded_by_their_place_in_the_tensor() -> None:
    """Two tensors with the same kept values at other places draw other roundings."""
    values = np.random.default_rng(0).standard_normal(100).astype(np.float32) + 10
    first, second = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
    first[:100], second[500:600] = values, values
    codec = TopKQSGD(density=0.1, bits=2)
    assert (decoded(codec, first)[:100] != decoded(codec, second)[500:600]).any()


@pytest.mark.parametrize(
    ("codec", "change", "message"),
    [
        (QSGD(bits=4), {11: 0x7F, 10: 0x80}, "a scale is not finite"),
        (QSGD(bits=4), {11: 0xBF}, "a scale is negative"),
        (QSGD(levels=4), {12: 0x07}, "a code is above the top level 4"),
        (QSGD(levels=4, packing="radix"), {15: 0xFF}, "a word is no radix number"),
        (QSGD(levels=1, packing="radix"), {12: 0xFF}, "a word is no radix number"),
        (QSGD(levels=3, packing="elias"), {12: 0x00}, "above the top level 3|do not fill"),
    ],
)
def test_payloads_that_cannot_be_ours_are_refused(codec: QSGD, change: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoded_after(codec, change)


def test_elias_payloads_of_another_length_are_refused() -> None:
    ops, spec, codec = ops_of("numpy"), TensorSpec((8,), "float32"), QSGD(packing="elias")
    packed = pack(ops, codec.encode(ops, X, {}, SITE)[0])
    for wrong in (packed[:11], np.concatenate([packed, np.zeros(9, np.uint8)])):
        with pytest.raises(ValueError, match=r"payload: \d+ bytes, expected \d+ to \d+|do not fill the bytes"):
            codec.decode(ops, unpack(ops, wrong, codec, spec), spec, SITE)


def test_fitted_levels_have_the_declared_size_and_fit_better() -> None:
    """Section 6: 8 bytes for each bucket; levels at zero would be wasted on kept entries."""
    x, spec = np.random.default_rng(0).standard_normal(20_000).astype(np.float32), TensorSpec((20_000,), "float32")
    errors = {}
    for grid in ("uniform", "fitted"):
        codec = TopKQSGD(density=0.05, bits=4, grid=grid, rounding="nearest")
        assert len(wire(codec, x)) == 2 * codec.payload_nbytes(spec)
        kept = np.flatnonzero(decoded(codec, x))
        errors[grid] = float(np.sum((decoded(codec, x) - x)[kept] ** 2))
    plain, fitted = (TopKQSGD(density=0.05, grid=grid).payload_nbytes(spec) for grid in ("uniform", "fitted"))
    assert fitted == plain + 4 * 2
    assert errors["fitted"] < errors["uniform"] / 2
