"""What is special about AdaQ: one mean for the kept entries of each sign."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import Codec, JointSQ, TensorSpec, TopKQSGD
from hvd_compress.codecs import AdaQ, OneBit
from hvd_compress.fitting import fitted
from tests.cases import backends, label
from tests.single.codecs.payloads import decoded, decoded_after, wire

WIRE = {
    "adaq density=0.1": "010000000600000040235e3f40235ebf88ea03071c07",
    "error_feedback (adaq density=0.1)": "0100000006000000c0e7a23fc0e7a2bf633502071c07",
}


@backends
def test_payload_by_hand(backend: str) -> None:
    """The means of 7 and of -6 and -8, the bitmap of 5, 6 and 7, the signs 1, 0 and 1."""
    x = np.array([1, -2, 3, -4, 5, -6, 7, -8], np.float32)
    assert wire(AdaQ(density=3 / 8), x, backend) == "0100000003000000" + "0000e040" + "0000e0c0" + "e0" + "05"


def test_size() -> None:
    spec = TensorSpec((25_600_000,), "float32")
    assert AdaQ(density=0.001).payload_nbytes(spec) == 8 + 8 + 38_250 + 25_600 // 8


def test_density_1_is_1_bit_sgd() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    np.testing.assert_array_equal(decoded(AdaQ(density=1.0), x), decoded(OneBit(), x))


def test_kept_entries_arrive_as_the_mean_of_their_sign() -> None:
    x = np.array([9, -8, 0.5, 7, -0.1, -4], np.float32)
    assert decoded(AdaQ(density=4 / 6), x).tolist() == [8, -6, 0, 8, 0, -6]
    assert decoded(AdaQ(density=2 / 6), np.abs(x)).tolist() == [8.5, 8.5, 0, 0, 0, 0]


@pytest.mark.parametrize("other", [TopKQSGD(bits=2, grid="fitted", bucket_size=0), JointSQ()], ids=label)
@pytest.mark.parametrize(("kind", "better"), [("standard_normal", True), ("laplace", True), ("standard_cauchy", False)])
def test_at_equal_bytes_it_loses_less_than_wider_codes_where_tails_are_light(
    kind: str, better: bool, other: Codec
) -> None:
    x = getattr(np.random.default_rng(0), kind)(size=50_000).astype(np.float32)
    spec, errors = TensorSpec(x.shape, "float32"), []
    for codec in (AdaQ(), other):
        (chosen,) = fitted(codec, spec, 2000, codec.knobs[:1])
        errors.append(float(np.sum((decoded(chosen, x) - x).astype(np.float64) ** 2)))
    assert (errors[0] < errors[1]) is better


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({15: 0x3F}, "a scale is negative"),
        ({11: 0x7F, 10: 0x80}, "a scale is not finite"),
        ({16: 0x60}, "does not hold 3 ones"),
    ],
)
def test_payloads_that_cannot_be_ours_are_refused(change: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoded_after(AdaQ(density=3 / 8), change)
