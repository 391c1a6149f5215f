"""Levels of several groups at once against those of one group after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress.codecs._fit_rows import Groups, fit_rows, rows_of, spread_rows
from hvd_compress.codecs._levels import fit_levels, spread_levels
from hvd_compress.ops._numpy import NumpyOps
from tests.cases import ops_of, to_backend, to_numpy

OPS = NumpyOps()
BACKENDS = pytest.mark.parametrize("backend", ["numpy", "device"])
BITS = pytest.mark.parametrize("bits", [2, 3, 4, 8])


def values_of(kind: str, k: int) -> np.ndarray[Any, Any]:
    draws = np.random.default_rng(k)
    kinds = {
        "normal": draws.standard_normal(k),
        "far apart": np.exp(20 * draws.standard_normal(k)),
        "equal": np.full(k, -3.7),
        "two": draws.integers(1, 3, k),
        "tiny": draws.integers(1, 50, k) * 1e-44,
        "zeros": np.zeros(k),
        "largest": np.full(k, 3.4028235e38) * draws.choice([-1, 1, 0.5], k),
    }
    return kinds[kind].astype(np.float32)


KINDS = pytest.mark.parametrize("kind", ["normal", "far apart", "equal", "two", "tiny", "zeros", "largest"])


@BACKENDS
@BITS
@KINDS
@pytest.mark.parametrize(("k", "size"), [(1, 1), (7, 7), (64, 64), (100, 30), (100, 33), (90, 45), (257, 257)])
@pytest.mark.parametrize("iterations", [0, 1, 2, 8])
def test_rows_are_fitted_as_one_group_after_the_other(
    kind: str, k: int, size: int, bits: int, iterations: int, backend: str
) -> None:
    values, ops = values_of(kind, k), ops_of(backend)
    groups, own = rows_of(ops, to_backend(backend, values), size)
    lines, codes = fit_rows(ops, groups, bits, iterations)
    pieces = [values[start : start + size] for start in range(0, k, size)]
    expected = [fit_levels(OPS, piece, bits, iterations) for piece in pieces]
    assert to_numpy(lines).tobytes() == np.concatenate([line for line, _ in expected]).tobytes()
    assert to_numpy(ops.take(codes, own)).tolist() == np.concatenate([code for _, code in expected]).tolist()


@BACKENDS
@BITS
@KINDS
def test_rows_are_spread_as_one_group_after_the_other(kind: str, bits: int, backend: str) -> None:
    values, ops = values_of(kind, 100), ops_of(backend)
    draws = np.random.default_rng(1).random(100).astype(np.float32)
    groups, own = rows_of(ops, to_backend(backend, values), 30)
    laid_out, _ = rows_of(ops, to_backend(backend, draws), 30)
    lines, codes = spread_rows(ops, groups, bits, laid_out.values)
    pieces = [slice(start, start + 30) for start in range(0, 100, 30)]
    expected = [spread_levels(OPS, values[piece], bits, draws[piece]) for piece in pieces]
    assert to_numpy(lines).tobytes() == np.concatenate([line for line, _ in expected]).tobytes()
    assert to_numpy(ops.take(codes, own)).tolist() == np.concatenate([code for _, code in expected]).tolist()


@BACKENDS
def test_a_row_of_which_nothing_counts_has_a_line_of_zeros(backend: str) -> None:
    ops = ops_of(backend)
    values, counts = to_backend(backend, np.ones((2, 4), np.float32)), to_backend(backend, np.array([[0], [2]]))
    for lines, _ in (fit_rows(ops, Groups(values, counts), 2, 2), spread_rows(ops, Groups(values, counts), 2, values)):
        assert to_numpy(lines).tolist() == [[0, 0], [1, 0]]
