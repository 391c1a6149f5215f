"""Levels of several groups at once, by operations that look at no number; each as `fit_levels` and `spread_levels`.

A device can work through them while the host goes ahead. Groups are rows of one array, of which the first entries
count; the length of a row is a power of two, so that sums are taken in the order in which those of a single group are.
"""

from __future__ import annotations

from typing import NamedTuple

from hvd_compress.codecs._levels import SMALLEST_STEP
from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["Groups", "fit_rows", "rows_of", "spread_rows"]


class Groups(NamedTuple):
    """Values of several groups.

    Attributes
    ----------
    values : array, shape (rows, columns)
        float32, finite.
    counts : array, shape (rows, 1)
        How many entries of a row count, the first ones; int64.
    """

    values: Array
    counts: Array


def rows_of(ops: Kernels, values: Array, size: int) -> tuple[Groups, Array]:
    """Groups of `size` values each, the last one perhaps shorter, and where in all rows each value is."""
    k, rows = ops.shape(values)[0], ops.filled_rows(values, size)
    starts = ops.reshape(ops.arange(ops.shape(rows)[0]) * size, (-1, 1))
    own = ops.arange(k)
    place = own // size * ops.shape(rows)[1] + own - own // size * size
    return Groups(rows, ops.clip(k - starts, 0, size)), place


def fit_rows(ops: Kernels, groups: Groups, bits: int, iterations: int) -> tuple[Array, Array]:
    """`fit_levels` of each row: lines, shape (rows, 2), zeros where nothing counts, and the codes of all entries."""
    last = 2 ** (bits - 1) - 1
    inside, magnitudes, low, high = _measured(ops, groups)
    distances = ops.where(inside, magnitudes - low, 0.0)
    total = ops.cast(ops.where(groups.counts > 0, groups.counts, 1), "float64")
    step = (high - low) / (last + 1)
    base, rising = low + step / 2, high > low
    for _ in range(iterations):
        levels = ops.where(inside, _nearest(ops, magnitudes, base, step, last), 0.0)
        j, jj, d, jd = map(ops.ordered_sums, (levels, levels * levels, distances, levels * distances))
        numerator, denominator = total * jd - j * d, total * jj - j * j
        # Where no line rises through the values, the one before stays for good.
        rising = rising & ~ops.equal(denominator, 0.0) & (numerator > 0)
        slope = numerator / ops.where(rising, denominator, 1.0)
        base = ops.where(rising, low + (d - slope * j) / total, base)
        step = ops.where(rising, slope, step)
    lines, base, step = _stored(ops, base, step, low)
    return _lines(ops, groups, lines), _codes(ops, groups, _nearest(ops, magnitudes, base, step, last), last)


def spread_rows(ops: Kernels, groups: Groups, bits: int, draws: Array) -> tuple[Array, Array]:
    """`spread_levels` of each row, with a draw for each entry; returns what `fit_rows` does."""
    last = 2 ** (bits - 1) - 1
    _, magnitudes, low, high = _measured(ops, groups)
    # An array, because some frameworks multiply by the reciprocal of a number.
    lines, base, step = _stored(ops, low, (high - low) / ops.constant((last,), "float64"), low)
    y = (magnitudes - base) / ops.where(step > 0, step, 1.0)
    levels = ops.floor(y)
    levels = levels + ops.cast(ops.cast(draws, "float64") < y - levels, "float64")
    levels = ops.where(step > 0, ops.clip(levels, 0.0, float(last)), 0.0)
    return _lines(ops, groups, lines), _codes(ops, groups, levels, last)


def _measured(ops: Kernels, groups: Groups) -> tuple[Array, Array, Array, Array]:
    """Which entries count, and float64 magnitudes: all, and the smallest and the largest of each row."""
    values, counts = groups
    (rows, columns), top = ops.shape(values), 0x7FFFFFFF
    inside = ops.arange(columns) < counts
    pattern = ops.magnitude_bits(ops.flatten(values))
    bits = ops.reshape(pattern, (rows, columns))
    ends = top - ops.max(ops.where(inside, top - bits, 0)), ops.max(ops.where(inside, bits, 0))
    magnitudes = ops.cast(ops.from_bytes(ops.to_bytes(ops.concat([pattern, *ends])), "float32"), "float64")
    split = rows * columns
    low, high = (ops.reshape(magnitudes[split + start : split + start + rows], (rows, 1)) for start in (0, rows))
    return inside, ops.reshape(magnitudes[:split], (rows, columns)), ops.where(counts > 0, low, 0.0), high


def _nearest(ops: Kernels, magnitudes: Array, base: Array, step: Array, last: int) -> Array:
    places = (magnitudes - base) / ops.where(step > 0, step, 1.0)
    return ops.where(step > 0, ops.clip(ops.rint(places), 0.0, float(last)), 0.0)


def _stored(ops: Kernels, base: Array, step: Array, low: Array) -> tuple[Array, Array, Array]:
    """The lines as float32 holds them, shape (rows, 2), and their base and step once more as float64."""
    small = ops.cast(ops.float32(step), "float64") < SMALLEST_STEP
    base, step = ops.float32(ops.where(small, low, base)), ops.float32(ops.where(small, low * 0.0, step))
    return ops.where(ops.arange(2) < 1, base, step), ops.cast(base, "float64"), ops.cast(step, "float64")


def _lines(ops: Kernels, groups: Groups, lines: Array) -> Array:
    return ops.where(groups.counts > 0, lines, ops.zeros(1))


def _codes(ops: Kernels, groups: Groups, levels: Array, last: int) -> Array:
    return ops.signed_codes(ops.flatten(groups.values), ops.cast(ops.flatten(levels), "int64"), last)
