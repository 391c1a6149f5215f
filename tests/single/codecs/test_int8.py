"""What is special about blocks of 8-bit integers: their bytes, and how close they come."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import QSGD, TensorSpec
from hvd_compress.codecs import Int8
from tests.cases import backends
from tests.single.codecs.payloads import X, decoded, decoded_after, wire

WIRE = {
    "int8": (
        "0100000040000000c02f743f818d98a2abb4bdc4cbd2d8dde2e6eaeef1f4f6f8fafbfdfefeffff000000000000000000"
        "0001010202030506080a0c0f12161a1e23282e353c434c555e68737f"
    ),
    "error_feedback (int8 block_size=64 rounding=stochastic)": (
        "0100000040000000c02f743f818d97a2acb4bdc5cbd1d7dde1e5eaeef2f4f6f8fafbfdfdfeff0000000000000000ff01"
        "0002020303040606080a0d0f1215191f23272f353c434c545e68747f"
    ),
}


@backends
def test_published_payload(backend: str) -> None:
    """Section 13: the codes are [16, -32, 48, -64, 79, -95, 111, -127]."""
    assert wire(Int8(), X, backend) == "0100000008000000cdcc4c3f10e030c04fa16f81"


def test_published_size() -> None:
    assert Int8().payload_nbytes(TensorSpec((25_600_000,), "float32")) == 25_650_008


def test_the_error_is_at_most_half_a_step_of_the_block() -> None:
    x = np.random.default_rng(0).standard_t(2, 1000).astype(np.float32)
    scales = np.repeat([np.abs(x[start : start + 64]).max() for start in range(0, 1000, 64)], 64)[:1000]
    assert (np.abs(decoded(Int8(block_size=64), x) - x) <= scales / 254 * (1 + 1e-6)).all()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_levels_are_those_of_qsgd(rounding: str) -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = decoded(QSGD(levels=127, bucket_size=64, rounding=rounding), x)
    np.testing.assert_array_equal(decoded(Int8(block_size=64, rounding=rounding), x), expected)


@pytest.mark.parametrize(("kind", "arguments"), [("standard_normal", ()), ("standard_t", (3,))])
def test_it_loses_a_tenth_at_most_of_what_256_quantiles_lose(kind: str, arguments: tuple[int, ...]) -> None:
    """A code of 8 bits for each entry, and the mean of each quantile, as SketchML's quantile sketch has them."""
    x = getattr(np.random.default_rng(0), kind)(*arguments, size=200_000).astype(np.float32)
    own = np.digitize(x, np.quantile(x, np.linspace(0, 1, 257)[1:-1]))
    means = np.bincount(own, weights=x) / np.bincount(own)
    lost = [float(np.sum((arrived - x).astype(np.float64) ** 2)) for arrived in (decoded(Int8(), x), means[own])]
    assert lost[0] < 0.1 * lost[1]


@pytest.mark.parametrize("block_size", [63, 65537])
def test_other_block_sizes_are_refused(block_size: int) -> None:
    with pytest.raises(ValueError, match=r"Int8: block_size must be an integer in \[64, 65536\], got"):
        Int8(block_size=block_size)


@pytest.mark.parametrize(
    ("change", "message"), [({12: 0x80}, "a code is below -127"), ({11: 0x7F, 10: 0x80}, "a scale is not finite")]
)
def test_payloads_that_cannot_be_ours_are_refused(change: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoded_after(Int8(), change)
