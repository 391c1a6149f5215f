"""How many bits each entry gets under a budget: JointSQ's knapsack, solved without sorting the entries.

An entry of magnitude a offers three items: its first 2 bits, 2 more, 4 more. They cost 2, 2, 4 bits, and what they save
of the error ranks them by their *keys* a, a/r4, a/r8. Items are taken in falling order of keys, of equal keys first by
index, then by level, and the longest such prefix that the budget holds wins.

The entries are counted in bins by the leading bits of their magnitudes. The counts bound the cost of every prefix that
ends in a bin from below; where the bound exceeds the budget, the bin is not looked at. The items of the first bin in
which a prefix does fit are sorted, and no others: the result is exactly that of sorting all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hvd_compress.codec import EMPTY, NONFINITE, NORMAL, Array
from hvd_compress.codecs._budget import WIDTHS, Budget
from hvd_compress.ops.kernels import Kernels

__all__ = ["allocate", "key_ratios"]

_INFINITY = 0x7F800000
_SMALLEST = 0x00800000
"""Bits of 2**-126. Smaller keys are dropped, because processors may take them for zero."""
_EXPONENT_BIAS = 1023 - 127


def key_ratios(index_cost_bits: float) -> tuple[float, float, float]:
    """Magnitudes at which an entry deserves 2, 4 and 8 bits, divided by the first; an entry also costs its index."""
    second = math.sqrt(32 / (2 + index_cost_bits))
    return 1.0, second, second * math.sqrt(512 / 17)


def allocate(
    ops: Kernels, x: Array, budget: Budget, ratios: Sequence[float], shift: int = 18
) -> tuple[int, list[Array]]:
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
    shift : int
        Low bits of a magnitude that its bin ignores, in [14, 20]. The result does not depend on it: with fewer bins
        there are more items to sort.

    Returns
    -------
    flag : int
        `NONFINITE`, `EMPTY` (all below 2**-126) or `NORMAL`.
    groups : list of arrays
        Rising indices of the entries of 2, 4 and 8 bits.
    """
    nothing = [ops.arange(0)] * len(WIDTHS)
    histogram = ops.count_magnitudes(x, shift)
    first, end = _SMALLEST >> shift, _INFINITY >> shift
    sums = [ops.sum(part) for part in (histogram[end:], histogram[first:end])]
    bad, usable = ops.to_list(ops.concat([ops.reshape(total, (1,)) for total in sums]))
    if bad or not usable:
        return NONFINITE if bad else EMPTY, nothing
    edges = ops.shift_left(ops.arange(end + 1), shift)
    edges = ops.cast(ops.from_bytes(ops.to_bytes(ops.cast(edges, "int32")), "float32"), "float64")
    bins = [j for j in _bins_to_search(ops, histogram[:end], edges, shift, budget, ratios) if j >= first]
    if not bins:
        return NORMAL, nothing
    candidates = ops.at_least(x, bins[0] << shift)
    bits = ops.magnitude_bits(ops.take(x, candidates))
    magnitudes = ops.cast(ops.from_bytes(ops.to_bytes(bits), "float32"), "float64")
    # Divisors are arrays, because some frameworks multiply by the reciprocal of a number.
    keys = [magnitudes / ops.constant((ratio,), "float64") for ratio in ratios]
    for j in bins:
        cut = _last_that_fits(ops, keys, candidates, edges[j : j + 1], edges[j + 1 : j + 2], budget)
        if cut is not None:
            return NORMAL, _groups(ops, keys, candidates, *cut)
    return NORMAL, nothing


def _bins_to_search(
    ops: Kernels, histogram: Array, edges: Array, shift: int, budget: Budget, ratios: Sequence[float]
) -> list[int]:
    """Rising bins that hold items and in which, by the counts alone, a prefix that fits may end."""
    end = ops.shape(histogram)[0]
    # above[j]: entries in bin j and higher.
    above = ops.concat([ops.sum(histogram) - ops.cumsum(histogram) + histogram, ops.zeros(2, "int64")])
    least, most, items = [], [], histogram * 0
    for ratio in ratios:
        # The bin of the float32 below ratio * edge, read from the float64's bits.
        pattern = ops.shift_right(ops.from_bytes(ops.to_bytes(edges * ratio), "int64"), 29 + shift)
        owner = ops.clip(pattern - (_EXPONENT_BIAS << (23 - shift)), 0, end)
        # Where ratio * edge is no edge itself, of this bin's entries some are above it and some below.
        split = 0 if math.frexp(ratio)[0] == 0.5 else 1
        least.append(ops.take(above, owner[1:] + split))
        most.append(ops.take(above, owner[:-1]))
        items = items + most[-1] - least[-1]
    return ops.to_list(ops.nonzero((items > 0) & budget.may_fit(ops, least, most)))


def _last_that_fits(
    ops: Kernels, keys: Sequence[Array], candidates: Array, low: Array, high: Array, budget: Budget
) -> tuple[Array, Array] | None:
    """Key and rank of the last item of the longest prefix that ends in [low, high) and fits."""
    found, ranks, counts = [], [], []
    for level, key in enumerate(keys):
        beyond = key >= high
        inside = ops.nonzero((key >= low) & ~beyond)
        found.append(ops.take(key, inside))
        ranks.append(_rank(ops.take(candidates, inside), level))
        counts.append(ops.sum(ops.cast(beyond, "int64")))
    found, ranks = ops.concat(found), ops.concat(ranks)
    order = ops.argsort(ranks)
    order = ops.take(order, ops.argsort(-ops.take(found, order)))
    found, ranks = ops.take(found, order), ops.take(ranks, order)
    levels = ops.bit_and(ranks, 3)
    reached = [count + ops.cumsum(ops.cast(levels == level, "int64")) for level, count in enumerate(counts)]
    fitting = ops.nonzero(budget.fits(ops, reached))[-1:]
    return (ops.take(found, fitting), ops.take(ranks, fitting)) if ops.shape(fitting)[0] else None


def _rank(indices: Array, level: int) -> Array:
    return indices * 4 + level


def _groups(ops: Kernels, keys: Sequence[Array], candidates: Array, key: Array, rank: Array) -> list[Array]:
    """Indices by width, given the last item that is taken."""
    taken = [(own > key) | ((own == key) & (_rank(candidates, level) <= rank)) for level, own in enumerate(keys)]
    exact = [taken[0] & ~taken[1], taken[1] & ~taken[2], taken[2]]
    return [ops.take(candidates, ops.nonzero(mask)) for mask in exact]
