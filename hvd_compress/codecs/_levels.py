"""Quantisation of magnitudes that are all far from zero: 2**(b-1) levels base + j*step, fitted to the values.

A group of entries that were chosen for their size holds nothing near zero, so that a level at zero would be wasted.
"""

from __future__ import annotations

from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["SMALLEST_STEP", "fit_levels", "spread_levels"]

SMALLEST_STEP = 2.0**-126


def fit_levels(ops: Kernels, values: Array, bits: int, iterations: int) -> tuple[Array, Array]:
    """Choose levels by alternating between the nearest level of each value and the least-squares line through them.

    Parameters
    ----------
    ops : Kernels
        Operations; nothing may be traced.
    values : array, shape (k,)
        float32, finite; k >= 1. The levels are those of their magnitudes.
    bits : int
        Bits of a code, sign included.
    iterations : int
        0 leaves the levels at the centres of equal cells.

    Returns
    -------
    line : array, shape (2,)
        base and step, float32; step is 0 where all values share one level.
    codes : array, shape (k,)
        Number of each value's level, and its sign as the top bit; int64.
    """
    low, high = _range(ops, values)
    last = 2 ** (bits - 1) - 1
    step = (high - low) / (last + 1)
    base = low + step / 2
    for _ in range(iterations if high > low else 0):
        line = _regression(ops.shape(values)[0], *ops.level_sums(values, base, step, last, low))
        if line is None:
            break
        base, step = low + line[0], line[1]
    base, step = _stored(ops, base, step, low)
    return ops.constant((base, step), "float32"), ops.nearest_codes(values, base, step, last)


def spread_levels(ops: Kernels, values: Array, bits: int, draws: Array) -> tuple[Array, Array]:
    """Levels from the smallest to the largest value, chosen at random so that each value is met on average.

    Parameters and returns are those of `fit_levels`, but for `draws`: one float32 in [0, 1) for each value.
    """
    low, high = _range(ops, values)
    last = 2 ** (bits - 1) - 1
    base, step = _stored(ops, low, (high - low) / last, low)
    magnitudes = ops.cast(ops.where(values < 0, -values, values), "float64")
    y = (magnitudes - base) / ops.constant((step or 1.0,), "float64")
    whole = ops.floor(y)
    levels = whole + ops.cast(ops.cast(draws, "float64") < y - whole, "float64")
    levels = ops.clip(levels, 0.0, float(last if step else 0))
    return ops.constant((base, step), "float32"), ops.signed_codes(values, ops.cast(levels, "int64"), last)


def _range(ops: Kernels, values: Array) -> tuple[float, float]:
    """Smallest and largest magnitude."""
    bits, top = ops.magnitude_bits(values), 0x7FFFFFFF
    ends = [ops.reshape(end, (1,)) for end in (top - ops.max(top - bits), ops.max(bits))]
    low, high = ops.to_list(ops.from_bytes(ops.to_bytes(ops.cast(ops.concat(ends), "int32")), "float32"))
    return low, high


def _regression(k: int, j: float, jj: float, d: float, jd: float) -> tuple[float, float] | None:
    """Offset and slope of the least-squares line through k distances, from `level_sums`; None unless it rises."""
    numerator, denominator = k * jd - j * d, k * jj - j * j
    if denominator == 0 or numerator <= 0:
        return None
    step = numerator / denominator
    return (d - step * j) / k, step


def _stored(ops: Kernels, base: float, step: float, low: float) -> tuple[float, float]:
    """The line as float32 holds it."""
    rounded = ops.to_list(ops.cast(ops.constant((base, step), "float64"), "float32"))
    return (low, 0.0) if rounded[1] < SMALLEST_STEP else (rounded[0], rounded[1])
