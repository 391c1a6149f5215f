"""What is special about 1-bit SGD: two means for each bucket."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import ErrorFeedback, TensorSpec, compose
from hvd_compress.codecs import OneBit
from tests.cases import backends
from tests.single.codecs.payloads import X, decoded, decoded_after, wire
from tests.single.test_feedback import distance_from_optimum

WIRE = {
    "error_feedback (onebit)": "010000004000000000f0df3e00f0dfbeffff0000ffff0000",
    "onebit bucket_size=50": "010000004000000000f8353d8097033f00e07fbe00000000ffffffff00000000",
}


@backends
def test_published_payload(backend: str) -> None:
    assert wire(OneBit(), X, backend) == "0100000008000000cdcccc3e000000bfaa"


@backends
def test_the_means_above_come_before_those_below(backend: str) -> None:
    x = np.array([1, -2, 3, 0, -4, 8], np.float32)
    means = np.array([2, 4, -2, -4], np.float32).tobytes().hex()
    assert wire(OneBit(bucket_size=3), x, backend) == f"0100000006000000{means}12"


def test_published_size() -> None:
    assert OneBit().payload_nbytes(TensorSpec((25_600_000,), "float32")) == 3_200_016


def test_each_class_arrives_as_its_mean() -> None:
    """Section 10: [1, -2, 3, -4, 0] has the means 4/3 and -3 and the error 6.6667."""
    x = np.array([1, -2, 3, -4, 0], np.float32)
    arrived = decoded(OneBit(), x)
    np.testing.assert_allclose(arrived, [4 / 3, -3, 4 / 3, -3, 4 / 3], rtol=1e-7)
    assert np.sum((x - arrived) ** 2) == pytest.approx(20 / 3)


@pytest.mark.parametrize("bucket_size", [0, 7, 64, 5000])
def test_the_sum_of_each_bucket_is_kept(bucket_size: int) -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    arrived, size = decoded(OneBit(bucket_size=bucket_size), x), bucket_size or 1000
    for start in range(0, 1000, size):
        part = slice(start, start + size)
        assert arrived[part].sum(dtype=np.float64) == pytest.approx(x[part].sum(dtype=np.float64), abs=1e-4)


def test_a_class_without_entries_has_the_mean_zero() -> None:
    assert wire(OneBit(), np.array([1, 2], np.float32)) == "0100000002000000" + "0000c03f" + "00000000" + "00"
    assert decoded(OneBit(), np.array([-1, -2], np.float32)).tolist() == [-1.5, -1.5]


def test_error_feedback_is_part_of_it() -> None:
    assert compose("onebit").codec == ErrorFeedback(OneBit())
    with pytest.raises(ValueError, match="OneBit: error_feedback must be true"):
        compose("onebit", error_feedback=False)
    assert distance_from_optimum(OneBit()) > 0.1
    assert distance_from_optimum(ErrorFeedback(OneBit())) < 0.01


@pytest.mark.parametrize(
    ("change", "message"), [({15: 0x3F}, "a scale is negative"), ({11: 0x7F, 10: 0x80}, "a scale is not finite")]
)
def test_payloads_that_cannot_be_ours_are_refused(change: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoded_after(OneBit(), change)
