"""Thresholds that a fraction of magnitudes should reach, from distributions fitted to them: SIDCo's estimators."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from hvd_compress.codec import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["MODELS", "estimated_threshold", "magnitude_bits_of", "usual_stages"]

MODELS = ("exponential", "gpareto", "gamma")
_FIRST = 0.25
"""Fraction that passes the first of several stages."""
_SMALLEST, _LARGEST = 0x00800000, 3e38
"""Bits of the smallest magnitude that does not count as zero, and the largest threshold."""
_EQUAL = 1e-4
"""Spread, in terms of the mean, below which all magnitudes count as equal."""


class _Moments(NamedTuple):
    """Mean and variance, and the mean of the logarithms; 0 for what a model does not need."""

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


def estimated_threshold(ops: Kernels, x: Array, density: float, model: str, stages: int) -> float:
    """Estimate the threshold that a fraction `density` of the magnitudes of `x` reaches.

    The first stage fits the model to all magnitudes that are not zero. Each other one fits what is left of it to those
    that pass the stage before, of which the same fraction shall pass. Nothing may be traced.

    Parameters
    ----------
    x : array, shape (n,)
        float32, finite; n >= 1. Magnitudes below 2**-126 count as zero.
    density : float
        In (0, 1].
    model : str
        One of `MODELS`; what exceeds a threshold is fitted by a generalised Pareto distribution for "gamma", too.
    stages : int
    """
    stages = stages if density < _FIRST else 1
    first = density if stages == 1 else _FIRST
    total, count = ops.shape(x)[0], ops.count_at_least(x, _SMALLEST)
    if count == 0:
        return 0.0
    threshold = _QUANTILES[model](_moments(ops, x, count, 0.0, model), min(1.0, first * total / count))
    later = "exponential" if model == "exponential" else "gpareto"
    for _ in range(stages - 1):
        x = ops.take(x, ops.at_least(x, max(_SMALLEST, magnitude_bits_of(threshold))))
        if ops.shape(x)[0] == 0:
            break
        above = _moments(ops, x, ops.shape(x)[0], threshold, later)
        if above.mean <= 0:
            break
        threshold += _QUANTILES[later](above, (density / first) ** (1 / (stages - 1)))
    return threshold


def magnitude_bits_of(threshold: float) -> int:
    """Bits of the float32 next to a threshold of at least 0, which may be -0.0."""
    return int(struct.unpack("<I", struct.pack("<f", max(0.0, min(threshold, _LARGEST))))[0])


def _moments(ops: Kernels, x: Array, count: int, low: float, model: str) -> _Moments:
    """Of what the `count` magnitudes that are not zero exceed `low` by, as far as the model asks for them."""
    terms = ("all",) if model == "exponential" else ("all", "squares")
    mean, *squares = (
        value / count for value in ops.to_list(ops.flatten(ops.magnitude_sums(x, ops.shape(x)[0], terms)))
    )
    variance = max(0.0, squares[0] - mean * mean) if squares else 0.0
    return _Moments(mean - low, variance, _log_sum(ops, x) / count if model == "gamma" else 0.0)


def _log_sum(ops: Kernels, x: Array) -> float:
    wide = ops.wide_magnitudes(x)
    (total,) = ops.to_list(ops.reshape(ops.sum(ops.log(ops.where(wide > 0, wide, 1.0))), (1,)))
    return float(total)


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
