# mypy: ignore-errors
"""Selection of the largest magnitudes, in Triton: the threshold is found by counting, four bits in each pass.

Nothing is sorted, and the host never learns the threshold. Counts are of integers: it does not matter in which order
blocks add theirs.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["SHIFTS", "count_chosen", "count_reaching", "write_chosen"]

SHIFTS = (27, 23, 19, 15, 11, 7, 3, 0)
"""Place of the lowest bit that each pass finds, of the 31 bits of a magnitude."""


_PASSES = tl.constexpr(len(SHIFTS))


@triton.jit
def _chosen(found, number, k, shift):
    """Threshold after pass `number`: it gets the largest of 16 digits that at least `k` magnitudes reach.

    `found` holds 16 counts for each pass, and behind them the threshold that each pass began with.
    """
    counts = tl.load(found + 16 * number + tl.arange(0, 16))
    digit = tl.sum((counts >= k).to(tl.int32), 0) - 1
    return tl.load(found + 16 * _PASSES + number) + (digit << shift)


@triton.jit
def _magnitudes(value, inside):
    return tl.where(inside, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)


@triton.jit(do_not_specialize=["k", "number", "shift", "before"])
def count_reaching(
    x,
    residual,
    total,
    found,
    n,
    k,
    number,
    shift,
    before,
    decay,
    FIRST: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count the magnitudes that reach the threshold so far with each of 16 digits at the place `shift`.

    The pass before had the place `before`. With ADD, in the first pass, `total` becomes ``x + decay * residual``, and
    the magnitudes are those of that; otherwise those of `x`.
    """
    base = 0
    if not FIRST:
        base = _chosen(found, number - 1, k, before)
        # All programs write the same.
        tl.store(found + 16 * _PASSES + number, base)
    thresholds = base + (tl.arange(0, 16) << shift)
    reached = tl.zeros((BLOCK, 16), tl.int32)
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        i = block * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        value = tl.load(x + i, mask=inside, other=0.0)
        if ADD:
            value = value + decay * tl.load(residual + i, mask=inside, other=0.0)
            tl.store(total + i, value, mask=inside)
        reached += (_magnitudes(value, inside)[:, None] >= thresholds[None, :]).to(tl.int32)
    # The last pass has fewer bits than digits: what goes beyond 31 bits is reached by none.
    counts = tl.where(thresholds >= base, tl.sum(reached, 0), 0)
    tl.atomic_add(found + 16 * number + tl.arange(0, 16), counts)


@triton.jit(do_not_specialize=["k"])
def count_chosen(x, found, by_block, n, k, BLOCK: tl.constexpr):
    """Count the magnitudes of each block that are above the threshold, and behind these those that are equal."""
    threshold = _chosen(found, _PASSES - 1, k, 0)
    block = tl.program_id(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    key = _magnitudes(tl.load(x + i, mask=inside, other=0.0), inside)
    tl.store(by_block + block, tl.sum((key > threshold).to(tl.int32), 0))
    tl.store(by_block + tl.num_programs(0) + block, tl.sum((key == threshold).to(tl.int32), 0))


@triton.jit(do_not_specialize=["k"])
def write_chosen(x, found, by_block, ends, indices, n, k, BLOCK: tl.constexpr):
    """Write the indices of all above the threshold and of the first ones at it, `k` in all.

    `ends` are the running sums of what `count_chosen` counted, of both rows.
    """
    threshold = _chosen(found, _PASSES - 1, k, 0)
    block, blocks = tl.program_id(0), tl.num_programs(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    key = _magnitudes(tl.load(x + i, mask=inside, other=0.0), inside)
    above, equal = (key > threshold).to(tl.int32), (key == threshold).to(tl.int32)
    # How many are above, and how many equal, before each entry.
    higher = tl.load(ends + block) - tl.load(by_block + block) + tl.cumsum(above, 0) - above
    same = tl.load(ends + blocks + block) - tl.load(by_block + blocks + block) + tl.cumsum(equal, 0) - equal
    wanted = k - tl.load(ends + blocks - 1)
    taken = (above > 0) | ((equal > 0) & (same < wanted))
    tl.store(indices + higher + tl.minimum(same, wanted), i.to(tl.int64), mask=taken)
