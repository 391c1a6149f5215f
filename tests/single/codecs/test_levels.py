"""Levels fitted to the entries of one width."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hvd_compress.codecs._levels import fit_levels, spread_levels
from hvd_compress.generator import ROUNDING, Site, generator_key
from hvd_compress.ops import Kernels
from tests.cases import backends, ops_of, to_backend, to_numpy

VECTOR = np.array([1, 1.1, 1.4, 2, 3.5], np.float32)
LINE = (("float32", (2,)), ("int64", (None,)))


def fitted(v: np.ndarray[Any, Any], bits: int, iterations: int, backend: str = "numpy") -> tuple[Any, Any, Any]:
    """base and step, levels and values, computed where codecs compute them."""
    ops = ops_of(backend)
    line, levels = ops.run_eagerly(lambda ops, v: fit_levels(ops, v, bits, iterations), (to_backend(backend, v),), LINE)
    return to_numpy(line), to_numpy(levels), to_numpy(ops.code_values(levels, line, 2 ** (bits - 1) - 1))


def spread(ops: Kernels, v: Any, bits: int, draws: Any) -> tuple[Any, Any]:
    """base and step, and the values of stochastic levels."""
    line, levels = ops.run_eagerly(lambda ops, v, draws: spread_levels(ops, v, bits, draws), (v, draws), LINE)
    return to_numpy(line), to_numpy(ops.code_values(levels, line, 2 ** (bits - 1) - 1))


def squares(v: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> float:
    return float(np.sum((v.astype(np.float64) - values) ** 2))


@backends
@pytest.mark.parametrize(
    ("iterations", "line", "error"),
    [
        (0, [1.625, 1.25], 1.248125),
        (1, [1.375, 2.125], 0.6075),
        (2, [1.375, 2.125], 0.6075),
        (8, [1.375, 2.125], 0.6075),
    ],
)
def test_published_fit(backend: str, iterations: int, line: list[float], error: float) -> None:
    found, levels, values = fitted(VECTOR, 2, iterations, backend)
    assert found.tolist() == line
    assert levels.tolist() == [0, 0, 0, 0, 1]
    assert squares(VECTOR, values) == pytest.approx(error, rel=1e-6)


@backends
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("v", [[3.7], [0.1, 0.1, 0.1], [2.0**-126], [3.4028235e38] * 2], ids=repr)
def test_equal_values_are_exact(backend: str, bits: int, v: list[float]) -> None:
    values = np.array(v, np.float32)
    line, levels, decoded = fitted(values, bits, 2, backend)
    assert line.tolist() == [values[0], 0]
    assert not levels.any()
    assert decoded.tolist() == values.tolist()


@backends
def test_two_values_of_one_width_are_exact(backend: str) -> None:
    values = np.array([1.0, 3.0], np.float32)
    assert fitted(values, 2, 2, backend)[2].tolist() == [1, 3]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("kind", ["uniform", "exponential", "pareto"])
def test_levels_are_the_nearest_and_fitting_never_makes_the_error_larger(kind: str, bits: int) -> None:
    draws = np.random.default_rng(bits)
    excess = {
        "uniform": draws.random(3000),
        "exponential": draws.exponential(size=3000),
        "pareto": draws.pareto(3, 3000),
    }
    v = (1 + excess[kind]).astype(np.float32)
    errors = []
    for iterations in range(5):
        line, levels, values = fitted(v, bits, iterations)
        errors.append(squares(v, values))
        grid = line[0] + np.arange(2 ** (bits - 1)) * line[1].astype(np.float64)
        best = np.abs(v[:, None].astype(np.float64) - grid).min(axis=1)
        np.testing.assert_allclose(np.abs(v - grid[levels]), best, rtol=1e-6, atol=1e-12)
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(errors))
    assert errors[4] < errors[0]


def test_cells_without_a_fit_are_equal() -> None:
    v = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8], np.float32)
    line, levels, _ = fitted(v, 4, 0)
    assert line.tolist() == [0.5, 1.0]
    assert levels.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 7]


@backends
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_steps_that_processors_may_take_for_zero_become_zero(backend: str, bits: int) -> None:
    v = (2.0**-126 * (1 + np.arange(6) / 2**23)).astype(np.float32)
    line, levels, values = fitted(v, bits, 2, backend)
    assert line.tolist() == [2.0**-126, 0]
    assert not levels.any()
    assert (values == np.float32(2.0**-126)).all()


@backends
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_values_near_the_largest_float_stay_finite(backend: str, bits: int) -> None:
    top = np.float64(np.finfo(np.float32).max)
    for share in (0.02, 0.5, 0.99):
        v = (top * (1 - share * np.random.default_rng(1).random(200) ** 3)).astype(np.float32)
        v[0] = top
        ops = ops_of(backend)
        with ops.quiet():
            assert np.isfinite(fitted(v, bits, 8, backend)[2]).all()
            assert np.isfinite(spread(ops, to_backend(backend, v), bits, ops.zeros(200))[1]).all()


@backends
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("n", [2, 37, 5000])
def test_backends_give_numpy_s_bits(backend: str, bits: int, n: int) -> None:
    """Sums over many values included, whose last bit depends on the order of the additions."""
    v = np.abs(np.random.default_rng(n).standard_t(1, n)).astype(np.float32) + np.float32(0.01)
    for ours, theirs in zip(fitted(v, bits, 3, backend), fitted(v, bits, 3), strict=True):
        assert ours.tobytes() == theirs.tobytes()


@backends
def test_sums_do_not_depend_on_the_framework_and_are_accurate(backend: str) -> None:
    ops = ops_of(backend)
    for n in (0, 1, 2, 3, 1000, 4097):
        x = np.random.default_rng(n).standard_cauchy(n)
        total = to_numpy(ops.ordered_sum(to_backend(backend, x)))
        assert total.shape == (1,)
        assert total.tobytes() == ops_of("numpy").ordered_sum(x).tobytes()
        np.testing.assert_allclose(total[0], x.sum(), rtol=1e-13, atol=1e-12 * np.abs(x).sum())


@backends
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_stochastic_levels_are_unbiased(backend: str, bits: int) -> None:
    ops, repeats = ops_of(backend), 400
    v = np.abs(np.random.default_rng(bits).standard_normal(40)).astype(np.float32) + np.float32(0.5)
    draws = ops.uniform(ops.arange(40 * repeats), generator_key(0, Site("w", 0), ROUNDING))
    (base, step), values = spread(ops, to_backend(backend, np.tile(v, repeats)), bits, draws)
    assert base == v.min()
    # A value lies between two levels, so its deviation is at most half a step.
    np.testing.assert_allclose(values.reshape(repeats, 40).mean(axis=0), v, atol=6 * step / 2 / np.sqrt(repeats))
