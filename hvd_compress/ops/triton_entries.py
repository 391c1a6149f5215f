# mypy: ignore-errors
"""Single entries and their positions, in Triton: added to an array, and as Elias-Fano code."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_entries", "count_ones", "pack_rising", "unpack_rising"]


@triton.jit(do_not_specialize=["k"])
def add_entries(total, indices, values, k, BLOCK: tl.constexpr):
    """Add values at distinct indices: no two programs meet at one."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < k
    place = tl.load(indices + i, mask=inside, other=0)
    value = tl.load(total + place, mask=inside, other=0.0) + tl.load(values + i, mask=inside, other=0.0)
    tl.store(total + place, value, mask=inside)


@triton.jit
def _set_bits(words, bit, value, mask):
    """Set the bits of unsigned 32-bit `value` from `bit` on, in two words where they reach into the next one."""
    word, shift = bit >> 5, (bit & 31).to(tl.uint32)
    tl.atomic_or(words + word, (value << shift).to(tl.int32, bitcast=True), mask=mask)
    rest = tl.where(shift > 0, value >> ((32 - shift) & 31), 0)
    tl.atomic_or(words + word + 1, rest.to(tl.int32, bitcast=True), mask=mask & (rest > 0))


@triton.jit(do_not_specialize=["k", "low", "high_start"])
def pack_rising(indices, words, k, low, high_start, BLOCK: tl.constexpr):
    """Elias-Fano code in zeroed 32-bit words: `low` bits of each index, and a bitmap from bit `high_start` on."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < k
    index = tl.load(indices + i, mask=inside, other=0)
    mask = (tl.full((), 1, tl.int64) << low) - 1
    _set_bits(words, i.to(tl.int64) * low, (index & mask).to(tl.uint32), inside & (low > 0))
    bit = (index >> low) + i + high_start
    tl.atomic_or(
        words + (bit >> 5),
        (tl.full((BLOCK,), 1, tl.uint32) << (bit & 31).to(tl.uint32)).to(tl.int32, bitcast=True),
        mask=inside,
    )


@triton.jit
def _bits(packed, nbytes, BLOCK: tl.constexpr):
    """Places and values of the bits of a block of the bytes of a bitmap."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(packed + (place >> 3), mask=place < nbytes * 8, other=0).to(tl.int32)
    return place, (byte >> (place & 7).to(tl.int32)) & 1


@triton.jit(do_not_specialize=["nbytes"])
def count_ones(packed, counts, nbytes, BLOCK: tl.constexpr):
    """Count the ones in each block of BLOCK bits."""
    _, bits = _bits(packed, nbytes, BLOCK)
    tl.store(counts + tl.program_id(0), tl.sum(bits, 0))


@triton.jit(do_not_specialize=["nbytes", "split", "k", "low"])
def unpack_rising(packed, counts, ends, indices, nbytes, split, k, low, BLOCK: tl.constexpr):
    """Undo `pack_rising`, whose bitmap begins at byte `split`; `ends` sums up the `counts` of its blocks."""
    place, bits = _bits(packed + split, nbytes - split, BLOCK)
    block = tl.program_id(0)
    i = tl.load(ends + block) - tl.load(counts + block) + tl.cumsum(bits, 0) - bits
    inside = (bits > 0) & (i < k)
    bit = i.to(tl.int64) * low
    value = tl.zeros((BLOCK,), tl.int64)
    for byte in tl.static_range(5):
        where = (bit >> 3) + byte
        value |= tl.load(packed + where, mask=inside & (where < split), other=0).to(tl.int64) << (8 * byte)
    value = (value >> (bit & 7)) & ((tl.full((), 1, tl.int64) << low) - 1)
    tl.store(indices + i, ((place - i) << low) | value, mask=inside)
