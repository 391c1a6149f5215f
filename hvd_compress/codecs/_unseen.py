"""JointSQ's payload by operations that look at no number: the bytes of `allocate` and `write_groups`.

A device can work through them while the host goes ahead. What has a size that depends on the data, the entries of each
width, is in arrays as long as that can become, and the number of those that count stays on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hvd_compress.codec import Array
from hvd_compress.codecs._budget import HEADER, WIDTHS, WireBudget, index_code
from hvd_compress.codecs._fit_rows import Groups
from hvd_compress.codecs._streams import Stream, stream_bits
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import EMPTY, NONFINITE, NORMAL

__all__ = ["Quantise", "Unseen", "encode_unseen"]

_INFINITY, _SMALLEST = 0x7F800000, 0x00800000
"""Bits of infinity and of 2**-126."""

Quantise = Callable[[Array, Groups, int], tuple[Array, Array]]
"""Line and codes of the values, a group of one row, at some indices, for a width."""


class Unseen(NamedTuple):
    """A payload and what is known of it.

    Attributes
    ----------
    body : array
        Without the header that all payloads have; uint8.
    flag : 0-d array
    indices, values : arrays
        Of all entries that might have been sent; 0.0 stands for those that were not.
    count : 0-d array
        How many entries were sent.
    """

    body: Array
    flag: Array
    indices: Array
    values: Array
    count: Array


def encode_unseen(ops: Kernels, x: Array, budget: WireBudget, ratios: Sequence[float], quantise: Quantise) -> Unseen:
    """Encode float32 `x`."""
    # With one more than can be sent, no prefix of their items that fits leaves out an item of another entry.
    indices = ops.largest(x, min(budget.numel, budget.most_entries + 1))
    values = ops.take(x, indices)
    flag, levels = _levels_of(ops, values, budget, ratios)
    candidates = ops.shape(indices)[0]
    sent, groups = ops.zeros(candidates + 1), []
    for number, width in enumerate(WIDTHS):
        mask = ops.equal(levels, number + 1)
        columns = 1 << max(0, min(candidates, budget.most_of(width)) - 1).bit_length()
        # Behind those that count, all point to one more entry.
        places = ops.first_nonzero(mask, columns)
        count = ops.reshape(ops.sum(ops.cast(mask, "int64")), (1,))
        own = ops.take(ops.concat([indices, ops.zeros(1, "int64")]), places)
        row = ops.reshape(ops.take(ops.concat([values, ops.zeros(1)]), places), (1, columns))
        line, codes = quantise(own, Groups(row, ops.reshape(count, (1, 1))), width)
        line = ops.flatten(line)
        sent = ops.put(sent, places, ops.code_values(codes, line, 2 ** (width - 1) - 1))
        groups.append(_Group(own, count, line, codes))
    body, count = _written(ops, groups, budget)
    return Unseen(body, flag, indices, sent[:candidates], count)


class _Group(NamedTuple):
    indices: Array
    count: Array
    line: Array
    codes: Array


def _levels_of(ops: Kernels, values: Array, budget: WireBudget, ratios: Sequence[float]) -> tuple[Array, Array]:
    """Flag, and how many items each entry gets."""
    bits = ops.magnitude_bits(values)
    most, candidates = ops.max(bits), ops.shape(values)[0]
    finite = most < _INFINITY
    flag = ops.where(finite, ops.where(most >= _SMALLEST, NORMAL, EMPTY), NONFINITE)
    magnitudes = ops.cast(ops.from_bytes(ops.to_bytes(bits), "float32"), "float64")
    # Item i * 3 + level: where keys are equal, sorting keeps the order of indices, then of levels.
    keys = ops.flatten(ops.reshape(magnitudes, (-1, 1)) / ops.constant(ratios, "float64"))
    usable = (keys >= 2.0**-126) & finite
    order = ops.argsort(-ops.where(usable, keys, 0.0))
    level = order - order // len(WIDTHS) * len(WIDTHS)
    reached = [ops.cumsum(ops.cast(ops.equal(level, number), "int64")) for number in range(len(WIDTHS))]
    fits = budget.fits(ops, reached) & ops.take(usable, order)
    places = ops.arange(len(WIDTHS) * candidates)
    taken = places < ops.max(ops.where(fits, places + 1, 0))
    table = ops.put(ops.zeros(len(WIDTHS) * candidates, "int64"), order, ops.cast(taken, "int64"))
    return flag, ops.sum(ops.reshape(table, (candidates, len(WIDTHS))))


def _written(ops: Kernels, groups: Sequence[_Group], budget: WireBudget) -> tuple[Array, Array]:
    """The groups as `write_groups` writes them, and how many entries they have."""
    counts, widths = ops.concat([group.count for group in groups]), ops.constant(WIDTHS, "int64")
    bitmap, low, nbytes = index_code(ops, budget.numel, counts)
    low = ops.where(bitmap, 0, low)
    code_nbytes = (counts * widths + 7) // 8
    starts = 8 * (ops.cumsum(nbytes) - nbytes)
    code_starts = 8 * (ops.sum(nbytes) + ops.cumsum(code_nbytes) - code_nbytes)
    high_starts = starts + ops.where(bitmap, 0, (counts * low + 7) // 8 * 8)
    length = 8 * (budget.nbytes - HEADER)
    lows, codes, ones = [], [], []
    for number, group in enumerate(groups):
        own = slice(number, number + 1)
        lows.append(Stream(starts[own], low[own], group.count, group.indices))
        codes.append(Stream(code_starts[own], widths[own], group.count, group.codes))
        i = ops.arange(ops.shape(group.indices)[0])
        high = ops.shift_right(group.indices, low[own]) + ops.where(bitmap[own], 0, i)
        # One bit more is for what does not count.
        ones.append(ops.where(i < group.count, high_starts[own] + high, length))
    marked = ops.put(ops.zeros(length + 1, "uint8"), ops.concat(ones), 1)[:length]
    bits = ops.cast(marked, "int64") + stream_bits(ops, length, [*lows, *codes])
    head = ops.to_bytes(ops.cast(counts, "int32")), ops.to_bytes(ops.concat([group.line for group in groups]))
    return ops.concat([*head, ops.bits_to_bytes(bits)]), ops.sum(counts)
