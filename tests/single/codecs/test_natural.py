"""What is special about natural compression: powers of two, their range, the variance."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import TensorSpec
from hvd_compress.codecs import Natural
from tests.cases import backends
from tests.single.codecs.payloads import SITE, X, decoded, wire

WIRE = {
    "natural": (
        "0100000040000000edededececececececebebebebebeaeae9e9e9e9e8e8e7e7e7e6e5e5e4e2dfdb5b5f626465656667"
        "6767686869696a6a6a6a6b6a6b6b6b6b6c6c6c6c6c6d6d6d"
    ),
    "error_feedback (natural seed=1234)": (
        "0100000040000000ededeeededececebecececebebeaebeaeaeaeaeae9e8e7e7e6e6e6e5e4e2e0db5b5f626264646667"
        "6668666969696a6a6a6a6b6b6b6b6c6b6b6c6c6d6d6d6e6c"
    ),
}


@backends
def test_published_payload(backend: str) -> None:
    assert wire(Natural(seed=1234), X, backend) == "01000000080000006aea6beb6cec6ced"


def test_published_size() -> None:
    assert Natural().payload_nbytes(TensorSpec((25_600_000,), "float32")) == 25_600_008


def test_powers_of_two_in_the_range_are_exact() -> None:
    x = np.ldexp(np.float32(1), np.arange(-108, 19)).astype(np.float32)
    np.testing.assert_array_equal(decoded(Natural(), np.concatenate([x, -x])), np.concatenate([x, -x]))


def test_what_is_beyond_the_range_is_cut_off() -> None:
    x = np.array([3e38, -1e6, 2.0**-109, -(2.0**-120), 1e-40], np.float32)
    assert decoded(Natural(), x).tolist() == [2.0**18, -(2.0**18), 0, 0, 0]


def test_the_larger_power_is_as_likely_as_the_entry_is_close_to_it() -> None:
    x = np.array([1.25, -1.75], np.float32)
    draws = np.stack([decoded(Natural(), x, SITE._replace(step=step)) for step in range(4000)])
    assert set(draws[:, 0]) == {1.0, 2.0}
    assert set(draws[:, 1]) == {-1.0, -2.0}
    np.testing.assert_allclose((np.abs(draws) == 2.0).mean(0), [0.25, 0.75], atol=0.03)


def test_variance_is_at_most_an_eighth_and_that_at_a_third() -> None:
    """At 1 + f the variance is f (1 - f), which is an eighth of the square at f = 1/3."""
    x = np.array([4 / 3, 1.1, 1.5, 1.9], np.float32)
    draws = np.stack([decoded(Natural(), x, SITE._replace(step=step)) for step in range(4000)])
    variance = np.mean((draws - x) ** 2, axis=0) / x**2
    assert variance[0] == pytest.approx(1 / 8, rel=0.05)
    assert (variance[1:] < 1 / 8).all()


def test_rank_and_step_draw_their_own_rounding() -> None:
    x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    sites = [SITE, SITE._replace(rank=1), SITE._replace(step=8), SITE._replace(name="other")]
    assert len({decoded(Natural(), x, site).tobytes() for site in sites}) == 4
