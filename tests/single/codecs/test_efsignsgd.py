"""What is special about EF-signSGD: the scale of the signs."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import ErrorFeedback, TensorSpec, compose
from hvd_compress.codecs import EFSignSGD
from tests.cases import backends
from tests.single.codecs.payloads import X, decoded, decoded_after, wire
from tests.single.test_feedback import distance_from_optimum

WIRE = {
    "efsignsgd": "010000004000000000e07f3effffffff00000000",
    "error_feedback (efsignsgd)": "010000004000000000f0df3effff0000ffff0000",
}


@backends
def test_published_payload(backend: str) -> None:
    assert wire(EFSignSGD(), X, backend) == "01000000080000006766e63eaa"


def test_published_size() -> None:
    assert EFSignSGD().payload_nbytes(TensorSpec((25_600_000,), "float32")) == 3_200_012


def test_the_scale_is_the_mean_magnitude() -> None:
    """Section 9: [1, -2, 3, -4] has the scale 2.5, the error 5 and the bits 0a."""
    x = np.array([1, -2, 3, -4], np.float32)
    assert decoded(EFSignSGD(), x).tolist() == [2.5, -2.5, 2.5, -2.5]
    assert np.sum((x - decoded(EFSignSGD(), x)) ** 2) == 5.0
    assert wire(EFSignSGD(), x).endswith("0a")


@pytest.mark.parametrize("n", [1, 10, 1000])
def test_the_error_is_what_the_norms_say(n: int) -> None:
    """||x - C(x)||^2 = ||x||^2 - ||x||_1^2 / n."""
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    error = np.sum((x - decoded(EFSignSGD(), x)).astype(np.float64) ** 2)
    wide = x.astype(np.float64)
    assert error == pytest.approx(np.sum(wide**2) - np.sum(np.abs(wide)) ** 2 / n, rel=1e-5, abs=1e-9)


def test_a_mean_that_is_too_small_is_kept_back() -> None:
    assert decoded(EFSignSGD(), np.full(10, 1e-31, np.float32)).tolist() == [0.0] * 10


def test_it_comes_with_error_feedback_and_needs_it() -> None:
    """Section 0.3: it ends 0.64 away from the optimum without, 0.0004 with it."""
    assert compose("efsignsgd").codec == ErrorFeedback(EFSignSGD())
    assert distance_from_optimum(EFSignSGD()) > 0.3
    assert distance_from_optimum(ErrorFeedback(EFSignSGD())) < 0.01


@pytest.mark.parametrize(
    ("change", "message"), [({11: 0x7F, 10: 0x80}, "a scale is not finite"), ({11: 0xBF}, "a scale is negative")]
)
def test_payloads_that_cannot_be_ours_are_refused(change: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoded_after(EFSignSGD(), change)
