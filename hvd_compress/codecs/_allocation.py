"""How many bits each entry gets under a budget: JointSQ's knapsack, solved without sorting the entries.

An entry of magnitude a offers three items: its first 2 bits, 2 more, 4 more. They cost 2, 2, 4 bits, and what they save
of the error ranks them by their *keys* a, a/r4, a/r8. Items are taken in falling order of keys, of equal keys first by
index, then by level, and the longest such prefix that the budget holds wins.

Only the largest entries can be taken, and of these not more than the budget has room for: a sample tells where they
begin. They are counted in bins by the leading bits of their magnitudes. The counts bound the cost of every prefix that
ends in a bin from below; where the bound exceeds the budget, the bin is not looked at. The items of the first bin in
which a prefix does fit are sorted, and no others: the result is exactly that of sorting all.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from hvd_compress.codec import Array
from hvd_compress.codecs._budget import WIDTHS, Budget
from hvd_compress.generator import Key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import EMPTY, NONFINITE, NORMAL

__all__ = ["Chosen", "allocate", "key_ratios"]

_INFINITY = 0x7F800000
_SMALLEST = 0x00800000
"""Bits of 2**-126. Smaller keys are dropped, because processors may take them for zero."""
_EXPONENT_BIAS = 1023 - 127


class Chosen(NamedTuple):
    """Some entries: rising indices, and float32 values."""

    indices: Array
    values: Array


def key_ratios(index_cost_bits: float) -> tuple[float, float, float]:
    """Magnitudes at which an entry deserves 2, 4 and 8 bits, divided by the first; an entry also costs its index."""
    second = math.sqrt(32 / (2 + index_cost_bits))
    return 1.0, second, second * math.sqrt(512 / 17)


def allocate(
    ops: Kernels, x: Array, budget: Budget, ratios: Sequence[float], shift: int | None = None
) -> tuple[int, list[Chosen]]:
    """Choose the width of every entry.

    Parameters
    ----------
    ops : Kernels
        Operations; nothing may be traced.
    x : array, shape (n,)
        The entries; float32.
    budget : WireBudget or ValueBudget
        What must hold the result.
    ratios : sequence of float
        From `key_ratios`.
    shift : int, optional
        Low bits of a magnitude that its bin ignores, in [14, 20]. The result does not depend on it: with fewer bins
        there are more items to sort. By default a kernel does it all, or else bins are narrow where there are many
        entries.

    Returns
    -------
    flag : int
        `NONFINITE`, `EMPTY` (all below 2**-126) or `NORMAL`.
    chosen : list of Chosen
        The entries of 2, of 4 and of 8 bits.
    """
    if shift is None:
        found = ops.choose_widths(x, ratios, budget.most_entries, budget.limit, not budget.fixed)
        if found is not None:
            return _flag(found[0]), [Chosen(*entries) for entries in found[1]]
        shift = 14 if ops.shape(x)[0] > 1 << 20 else 18
    nothing = [Chosen(ops.arange(0), ops.zeros(0))] * len(WIDTHS)
    candidates, least = _candidates(ops, x, budget.most_entries, shift)
    if ops.shape(candidates.indices)[0] == 0:
        return EMPTY, nothing
    most = ops.integer(ops.magnitude_bits(ops.bucket_maxima(candidates.values, ops.shape(candidates.values)[0])))
    if _flag(most) != NORMAL:
        return _flag(most), nothing
    first, end = least >> shift, (most >> shift) + 1
    histogram = ops.count_magnitudes(candidates.values, shift)[first:end]
    edges = ops.shift_left(ops.arange(end - first + 1) + first, shift)
    edges = ops.cast(ops.from_bytes(ops.to_bytes(ops.cast(edges, "int32")), "float32"), "float64")
    for j in _bins_to_search(ops, histogram, edges, (first, shift), budget, ratios):
        low, high = ops.to_list(edges[j : j + 2])
        cut = _last_that_fits(ops, candidates, (low, high), budget, ratios)
        if cut is not None:
            return NORMAL, _chosen(ops, candidates, *cut, ratios)
    return NORMAL, nothing


def _flag(most: int) -> int:
    """By the bits of the largest magnitude that is not dropped, 0 where there is none."""
    return NONFINITE if most >= _INFINITY else NORMAL if most else EMPTY


def _candidates(ops: Kernels, x: Array, most: int, shift: int) -> tuple[Chosen, int]:
    """More than `most` of the largest entries, or all, and the magnitude bits that they reach: where a bin begins."""
    least = max(_SMALLEST, _likely_bound(ops, x, most + 1) >> shift << shift)
    indices = ops.at_least(x, least)
    if ops.shape(indices)[0] <= most and least > _SMALLEST:
        least = _SMALLEST
        indices = ops.at_least(x, least)
    return Chosen(indices, ops.take(x, indices)), least


def _likely_bound(ops: Kernels, x: Array, k: int) -> int:
    """Magnitude bits that at least `k` entries most likely reach, and not many more, by a sample."""
    n = ops.shape(x)[0]
    # A larger tensor can afford more of them.
    count = 1 << 14 if n >= 1 << 22 else 1 << 11
    stride = n // count
    expected = k / max(1, n) * count
    rank = int(expected + 5 * math.sqrt(expected) + 16)
    if stride < 4 or rank >= count:
        return 0
    places = ops.arange(count)
    # Not one stride: entries of a column would repeat.
    offsets = ops.shift_right(ops.random_bits(places, Key(0, 0)) * stride, 32)
    sample = ops.take(x, places * stride + offsets)
    bits = ops.magnitude_bits(ops.take(sample, ops.largest(sample, rank)))
    return _INFINITY - int(ops.integer(ops.max(_INFINITY - bits)))


def _bins_to_search(
    ops: Kernels, histogram: Array, edges: Array, bins: tuple[int, int], budget: Budget, ratios: Sequence[float]
) -> list[int]:
    """Rising bins that hold items and in which, by the counts alone, a prefix that fits may end.

    `bins` are the number of the first one and the bits that a bin ignores.
    """
    end, (first, shift) = ops.shape(histogram)[0], bins
    # above[j]: entries in bin j and higher.
    above = ops.concat([ops.sum(histogram) - ops.cumsum(histogram) + histogram, ops.zeros(2, "int64")])
    least, most, items = [], [], histogram * 0
    for ratio in ratios:
        # The bin of the float32 below ratio * edge, read from the float64's bits.
        pattern = ops.shift_right(ops.from_bytes(ops.to_bytes(edges * ratio), "int64"), 29 + shift)
        owner = ops.clip(pattern - (_EXPONENT_BIAS << (23 - shift)) - first, 0, end)
        # Where ratio * edge is no edge itself, of this bin's entries some are above it and some below.
        split = 0 if math.frexp(ratio)[0] == 0.5 else 1
        least.append(ops.take(above, owner[1:] + split))
        most.append(ops.take(above, owner[:-1]))
        items = items + most[-1] - least[-1]
    return ops.to_list(ops.nonzero((items > 0) & budget.may_fit(ops, least, most)))


def _last_that_fits(
    ops: Kernels, candidates: Chosen, bin_of: tuple[float, float], budget: Budget, ratios: Sequence[float]
) -> tuple[float, int] | None:
    """Key and rank of the last item of the longest prefix that ends in a bin, [low, high), and fits."""
    keys, ranks, counts = [], [], []
    for level, ratio in enumerate(ratios):
        low, high = (_least_bits(edge, ratio) for edge in bin_of)
        inside = ops.at_least(candidates.values, low, high)
        bits = ops.magnitude_bits(ops.take(candidates.values, inside))
        magnitudes = ops.cast(ops.from_bytes(ops.to_bytes(bits), "float32"), "float64")
        # An array, because some frameworks multiply by the reciprocal of a number.
        keys.append(magnitudes / ops.constant((ratio,), "float64"))
        ranks.append(ops.take(candidates.indices, inside) * 4 + level)
        counts.append(ops.count_at_least(candidates.values, high))
    key, rank = ops.concat(keys), ops.concat(ranks)
    order = ops.argsort(rank)
    order = ops.take(order, ops.argsort(-ops.take(key, order)))
    rank = ops.take(rank, order)
    levels = ops.bit_and(rank, 3)
    reached = [count + ops.cumsum(ops.cast(levels == level, "int64")) for level, count in enumerate(counts)]
    last = ops.nonzero(budget.fits(ops, reached))[-1:]
    if ops.shape(last)[0] == 0:
        return None
    return ops.to_list(ops.take(key, ops.take(order, last)))[0], ops.integer(ops.take(rank, last))


def _least_bits(key: float, ratio: float) -> int:
    """Bits of the smallest float32 that is at least `key` when it is divided by `ratio`; infinity's where none is."""
    bits = struct.unpack("<I", struct.pack("<f", min(key * ratio, 3.4028234663852886e38)))[0]
    while bits > 0 and _key(bits - 1, ratio) >= key:
        bits -= 1
    while bits < _INFINITY and _key(bits, ratio) < key:
        bits += 1
    return int(bits)


def _key(bits: int, ratio: float) -> float:
    magnitude: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return magnitude / ratio


def _chosen(ops: Kernels, candidates: Chosen, key: float, rank: int, ratios: Sequence[float]) -> list[Chosen]:
    """Entries by width, given the last item that is taken: all with larger keys, of equal ones those up to its rank."""
    before = ops.integer(ops.sum(ops.cast(candidates.indices < rank >> 2, "int64")))
    equal = [_least_bits(key, ratio) for ratio in ratios]
    larger = [_least_bits(math.nextafter(key, math.inf), ratio) for ratio in ratios]
    # Of the last item's own entry, levels up to the item's are taken.
    own = [low if level <= rank & 3 else high for level, (low, high) in enumerate(zip(equal, larger, strict=True))]
    pieces = [(0, before, equal), (before, before + 1, own), (before + 1, ops.shape(candidates.indices)[0], larger)]
    chosen = []
    for level in range(len(WIDTHS)):
        places = ops.concat(
            [
                ops.at_least(candidates.values[start:stop], least[level], [*least, 1 << 31][level + 1]) + start
                for start, stop, least in pieces
            ]
        )
        chosen.append(Chosen(ops.take(candidates.indices, places), ops.take(candidates.values, places)))
    return chosen
