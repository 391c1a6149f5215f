"""What is special about TernGrad: its two packings, its clipping, its variance."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import QSGD, ErrorFeedback, TensorSpec
from hvd_compress.codecs import TernGrad
from tests.cases import backends
from tests.single.codecs.payloads import SITE, X, decoded, decoded_after, wire

WIRE = {
    "terngrad": "0100000040000000c02f743f4aa8a4000000000000005d6c28",
    "terngrad clip_sigma=2.5 packing=bits seed=1234": "0100000040000000cbb0713faa2a2080080000000000000040010055",
}


@backends
@pytest.mark.parametrize(("packing", "symbols"), [("bits", "8091"), ("radix", "8715")])
def test_published_payloads(backend: str, packing: str, symbols: str) -> None:
    assert wire(TernGrad(packing=packing, seed=1234), X, backend) == f"0100000008000000cdcc4c3f{symbols}"


@pytest.mark.parametrize(("packing", "nbytes"), [("bits", 6_400_012), ("radix", 5_120_012)])
def test_published_sizes(packing: str, nbytes: int) -> None:
    assert TernGrad(packing=packing).payload_nbytes(TensorSpec((25_600_000,), "float32")) == nbytes


@pytest.mark.parametrize("packing", ["bits", "radix"])
def test_it_is_qsgd_with_one_level(packing: str) -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = decoded(QSGD(levels=1, bucket_size=0), x)
    np.testing.assert_array_equal(decoded(TernGrad(packing=packing), x), expected)
    assert wire(TernGrad(), x) == wire(QSGD(levels=1, bucket_size=0, packing="radix"), x)


def test_variance_by_hand() -> None:
    """Section 11: [1, -2, 3, -4] is kept with probability [.25, .5, .75, 1]; the variance is 4 * 10 - 30."""
    x = np.array([1, -2, 3, -4], np.float32)
    draws = np.stack([decoded(TernGrad(), x, SITE._replace(step=step)) for step in range(4000)])
    np.testing.assert_allclose((draws != 0).mean(0), [0.25, 0.5, 0.75, 1.0], atol=0.03)
    assert np.mean(np.sum((draws - x) ** 2, axis=1)) == pytest.approx(10, rel=0.05)
    assert set(np.abs(draws).flatten()) == {0.0, 4.0}


def test_clipping_limits_the_scale_to_standard_deviations() -> None:
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    sigma = float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))
    assert np.abs(decoded(TernGrad(clip_sigma=2.5), x)).max() == np.float32(2.5 * sigma)
    assert np.abs(decoded(TernGrad(clip_sigma=100.0), x)).max() == np.abs(x).max()
    assert TernGrad().unbiased
    assert not TernGrad(clip_sigma=2.5).unbiased


def test_error_feedback_is_refused_because_the_error_is_larger_than_the_gradient() -> None:
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    assert np.sum((decoded(TernGrad(), x) - x) ** 2) > np.sum(x**2)
    with pytest.raises(ValueError, match="inner must be a codec that loses something and does not scale up"):
        ErrorFeedback(TernGrad())


@pytest.mark.parametrize(
    ("codec", "change", "message"),
    [
        (TernGrad(packing="bits"), {12: 0xC0}, "a symbol is above 2"),
        (TernGrad(), {12: 0xFF}, "a word is no radix number"),
        (TernGrad(), {11: 0xBF}, "a scale is negative"),
    ],
)
def test_payloads_that_cannot_be_ours_are_refused(codec: TernGrad, change: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoded_after(codec, change)
