# mypy: ignore-errors
"""Entries rounded to levels and packed, in Triton: each entry is read once, and nothing but its bits is written."""

from __future__ import annotations

import triton
import triton.language as tl

from hvd_compress.generator import MIX_1, MIX_2

__all__ = ["add_levels", "bucket_maxima", "pack_rounded"]

_MIX_1, _MIX_2 = tl.constexpr(MIX_1), tl.constexpr(MIX_2)
_ROUNDER = tl.constexpr(2.0**23)
"""Added to a float32 below 2**22 and taken away again, it leaves the nearest integer, half to even."""


@triton.jit
def _mix(x):
    x = x ^ (x >> 16)
    x = x * _MIX_1
    x = x ^ (x >> 15)
    x = x * _MIX_2
    return x ^ (x >> 16)


@triton.jit
def _uniform(i, k0, k1):
    """The counter-based generator's draws of entries `i`, by the two words of the key as signed integers."""
    bits = _mix(_mix(i.to(tl.uint32) ^ k0.to(tl.uint32, bitcast=True)) + k1.to(tl.uint32, bitcast=True))
    return (bits >> 8).to(tl.float32) * 2.0**-24


@triton.jit(do_not_specialize=["size", "buckets"])
def bucket_maxima(x, maxima, n, size, buckets, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Largest magnitude of each bucket of `size` entries, COLUMNS at most; ROWS of them in each program."""
    bucket = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, COLUMNS)[None, :]
    i = bucket[:, None] * size + place
    inside = (place < size) & (i < n) & (bucket[:, None] < buckets)
    key = tl.load(x + i, mask=inside, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.store(maxima + bucket, tl.max(key, 1).to(tl.float32, bitcast=True), mask=bucket < buckets)


@triton.jit(do_not_specialize=["size", "nbytes", "k0", "k1"])
def pack_rounded(
    x,
    factors,
    packed,
    n,
    size,
    nbytes,
    k0,
    k1,
    S: tl.constexpr,
    BITS: tl.constexpr,
    RANDOM: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Round ``|x| * factor`` of each bucket to 0..S and pack it with the sign, eight entries to BITS bytes.

    A negative factor makes all codes of its bucket 0.
    """
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    i = group[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = i < n
    value = tl.load(x + i, mask=inside, other=0.0)
    factor = tl.load(factors + i // size, mask=inside, other=0.0)
    y = tl.abs(value) * factor
    if RANDOM:
        levels = tl.floor(y)
        levels = levels + (_uniform(i, k0, k1) < y - levels).to(tl.float32)
    else:
        levels = (y + _ROUNDER) - _ROUNDER
    # What is no number has no level; its payload will not be read.
    levels = tl.where(y >= 0.0, tl.minimum(levels, S * 1.0), 0.0)
    pattern = value.to(tl.int32, bitcast=True)
    negative = (pattern < 0) & (pattern != -0x80000000)
    codes = levels.to(tl.int64) + tl.where(negative, 1 << (BITS - 1), 0)
    codes = tl.where(inside & (factor >= 0.0), codes, 0)
    words = tl.sum(codes << (tl.arange(0, 8)[None, :] * BITS).to(tl.int64), 1)
    for byte in tl.static_range(BITS):
        place = group * BITS + byte
        tl.store(packed + place, ((words >> (8 * byte)) & 255).to(tl.uint8), mask=place < nbytes)


@triton.jit(do_not_specialize=["size", "nbytes"])
def add_levels(
    total,
    packed,
    units,
    factor,
    n,
    size,
    nbytes,
    BITS: tl.constexpr,
    FIRST: tl.constexpr,
    SUBTRACT: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add what packed codes stand for to `total`, or to zero, or subtract it; then multiply by a factor."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    bit = i.to(tl.int64) * BITS
    byte = bit >> 3
    low = tl.load(packed + byte, mask=inside, other=0).to(tl.int32)
    high = tl.load(packed + byte + 1, mask=inside & (byte + 1 < nbytes), other=0).to(tl.int32)
    codes = ((low | (high << 8)) >> (bit & 7).to(tl.int32)) & ((1 << BITS) - 1)
    level = (codes & ((1 << (BITS - 1)) - 1)).to(tl.float32)
    value = level * tl.load(units + i // size, mask=inside, other=0.0)
    value = tl.where(codes >> (BITS - 1) > 0, -value, value)
    if FIRST:
        result = value + 0.0
    else:
        before = tl.load(total + i, mask=inside, other=0.0)
        result = before - value if SUBTRACT else before + value
    if SCALE:
        result = result * tl.load(factor)
    tl.store(total + i, result, mask=inside)
