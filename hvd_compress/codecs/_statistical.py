"""Thresholds that a fraction of magnitudes should reach, from distributions fitted to them: SIDCo's estimators."""

from __future__ import annotations

import math
from typing import NamedTuple

from hvd_compress.codec import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["MODELS", "estimated_threshold", "usual_stages"]

MODELS = ("exponential", "gpareto", "gamma")
_FIRST = 0.25
"""Fraction that passes the first of several stages."""
_EQUAL = 1e-4
"""Spread, in terms of the mean, below which all magnitudes count as equal."""


class _Moments(NamedTuple):
    """Mean and variance, and the mean of the logarithms."""

    mean: float
    variance: float
    log_mean: float


def usual_stages(density: float) -> int:
    """As many as it takes if each lets a quarter pass.

    Examples
    --------
    >>> [usual_stages(density) for density in (0.5, 0.1, 0.01, 0.001)]
    [1, 2, 4, 5]
    """
    return 1 + max(0, math.ceil(math.log(density / _FIRST, _FIRST)))


def estimated_threshold(ops: Kernels, magnitudes: Array, density: float, model: str, stages: int) -> float:
    """Estimate the threshold that a fraction `density` of float64 `magnitudes` reaches.

    The first stage fits the model to all magnitudes that are not zero. Each other one fits what is left of it to those
    that pass the stage before, of which the same fraction shall pass. Nothing may be traced.

    Parameters
    ----------
    magnitudes : array, shape (n,)
        Finite; n >= 1.
    density : float
        In (0, 1].
    model : str
        One of `MODELS`; what exceeds a threshold is fitted by a generalised Pareto distribution for "gamma", too.
    stages : int
    """
    stages = stages if density < _FIRST else 1
    first = density if stages == 1 else _FIRST
    total, magnitudes = ops.shape(magnitudes)[0], ops.take(magnitudes, ops.nonzero(magnitudes > 0))
    if ops.shape(magnitudes)[0] == 0:
        return 0.0
    threshold = _QUANTILES[model](_moments(ops, magnitudes), min(1.0, first * total / ops.shape(magnitudes)[0]))
    later = _QUANTILES["exponential" if model == "exponential" else "gpareto"]
    for _ in range(stages - 1):
        magnitudes = ops.take(magnitudes, ops.nonzero(magnitudes >= threshold))
        above = magnitudes - threshold
        if ops.shape(ops.nonzero(above > 0))[0] == 0:
            break
        threshold += later(_moments(ops, above), (density / first) ** (1 / (stages - 1)))
    return threshold


def _moments(ops: Kernels, x: Array) -> _Moments:
    logarithms = ops.log(ops.where(x > 0, x, 1.0))
    sums = [ops.reshape(ops.sum(term), (1,)) for term in (x, x * x, logarithms)]
    mean, square, log_mean = (value / ops.shape(x)[0] for value in ops.to_list(ops.concat(sums)))
    return _Moments(mean, max(0.0, square - mean * mean), log_mean)


def _exponential(moments: _Moments, density: float) -> float:
    return -moments.mean * math.log(density)


def _generalised_pareto(moments: _Moments, density: float) -> float:
    mean, variance, _ = moments
    if variance <= _EQUAL * mean * mean:
        return mean
    shape = (mean * mean / variance - 1) / 2
    scale = mean * (mean * mean / variance + 1) / 2
    return scale * -math.log(density) if abs(shape) < 1e-9 else scale * (1 - density**shape) / shape


def _gamma(moments: _Moments, density: float) -> float:
    mean, _, log_mean = moments
    spread = math.log(mean) - log_mean
    if spread <= _EQUAL:
        return mean
    shape = (3 - spread + math.sqrt((spread - 3) ** 2 + 24 * spread)) / (12 * spread)
    low, high = 0.0, shape + 1.0
    while _upper_gamma(shape, high) > density:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _upper_gamma(shape, middle) > density else (low, middle)
    return mean / shape * high


def _upper_gamma(shape: float, x: float) -> float:
    """Regularised upper incomplete gamma function, by the series of the lower one."""
    term = total = 1 / shape
    n = 0
    while term > 1e-16 * total:
        n += 1
        term *= x / (shape + n)
        total += term
    return 1 - total * math.exp(shape * math.log(x) - x - math.lgamma(shape)) if x > 0 else 1.0


_QUANTILES = {"exponential": _exponential, "gpareto": _generalised_pareto, "gamma": _gamma}
