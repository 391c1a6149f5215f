"""What is special about SIDCo: estimated thresholds, and that what is sent does not depend on them."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import TensorSpec, TopK
from hvd_compress.codecs import SIDCo
from hvd_compress.codecs._statistical import MODELS, estimated_threshold, usual_stages
from tests.cases import ARRAYS, ops_of
from tests.single.codecs.payloads import decoded, wire

WIRE = {
    "sidco density=0.1": "0100000006000000c02f74bf40a95dbfc09048bfc090483f40a95d3fc02f743f88ea03071c",
    "error_feedback (sidco density=0.1 model=gpareto)": (
        "010000000600000040dab4bfc079a2bf406391bf4063913fc079a23f40dab43f633502071c"
    ),
    "sidco density=0.05 model=gamma stages=2": "0100000003000000c02f74bf40a95dbfc02f743f100f23",
}
N = 1_000_000
DENSITIES = (0.1, 0.01, 0.001)


def share(x: np.ndarray, density: float, model: str = "exponential", stages: int = 1) -> float:
    """Return how many entries reach the threshold, of those that should."""
    x = x.astype(np.float32)
    threshold = estimated_threshold(ops_of("numpy"), x, density, model, stages)
    return float(np.count_nonzero(np.abs(x) >= threshold)) / (density * x.size)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("density", DENSITIES)
def test_of_laplace_entries_as_many_pass_as_should(model: str, density: float) -> None:
    """Section 8: their magnitudes are exponential, which is a special case of the other two."""
    assert share(np.random.default_rng(0).laplace(size=N), density, model) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("density", "one", "several"), [(0.1, 0.66, 1.17), (0.01, 0.02, 1.31), (0.001, 0.0, 1.24)], ids=str
)
def test_of_normal_entries_several_stages_let_the_published_shares_pass(
    density: float, one: float, several: float
) -> None:
    """Section 8."""
    x = np.random.default_rng(0).standard_normal(N)
    assert share(x, density) == pytest.approx(one, abs=0.01)
    assert share(x, density, stages=usual_stages(density)) == pytest.approx(several, abs=0.05)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stages", [1, 3])
def test_equal_and_zero_entries_do_not_disturb(model: str, stages: int) -> None:
    x = np.concatenate([np.zeros(900), np.full(100, 2.0)]).astype(np.float32)
    assert 0 < estimated_threshold(ops_of("numpy"), x, 0.01, model, stages) <= 100
    assert estimated_threshold(ops_of("numpy"), np.zeros(10, np.float32), 0.01, model, stages) == 0.0


@pytest.mark.parametrize("array", [*ARRAYS.values(), np.array([1, np.nan, -np.inf, 2] * 100, np.float32)])
@pytest.mark.parametrize("density", [0.01, 0.3])
@pytest.mark.parametrize("model", MODELS)
def test_whatever_the_estimate_the_payload_is_that_of_top_k(array: np.ndarray, density: float, model: str) -> None:
    x = array.reshape(-1)
    for stages in (None, 1, 6):
        assert wire(SIDCo(density, model, stages), x) == wire(TopK(density=density), x)


def test_size_and_result_are_those_of_top_k() -> None:
    assert SIDCo(density=0.001).payload_nbytes(TensorSpec((25_600_000,), "float32")) == 140_658
    x = np.random.default_rng(0).standard_t(2, 10_000).astype(np.float32)
    np.testing.assert_array_equal(decoded(SIDCo(), x), decoded(TopK(), x))
