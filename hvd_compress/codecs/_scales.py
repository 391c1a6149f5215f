"""Scales of quantised entries: what they are computed from, and when they stand for nothing."""

from __future__ import annotations

from hvd_compress.codec import Array
from hvd_compress.generator import Key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import EMPTY, NONFINITE, NORMAL

__all__ = ["flag_of_scales", "read_scales", "rounded", "usable", "wide_magnitudes"]

_TINY = 2.0**-100
_SMALLEST = 0x00800000
"""Bits of 2**-126. Smaller magnitudes count as zero, because some processors take them for zero."""


def wide_magnitudes(ops: Kernels, x: Array) -> Array:
    """Magnitudes of float32 `x` as float64, in which sums of them neither overflow nor lose small ones."""
    bits = ops.magnitude_bits(x)
    bits = ops.cast(ops.where(bits >= _SMALLEST, bits, 0), "int32")
    return ops.cast(ops.from_bytes(ops.to_bytes(bits), "float32"), "float64")


def usable(ops: Kernels, scales: Array) -> Array:
    """float32 `scales` of at least 0 with zeros in place of those so small that dividing by them could overflow."""
    return ops.where(scales < _TINY, ops.zeros(1), scales)


def rounded(ops: Kernels, x: Array, scales: Array, size: int, s: int, key: Key | None) -> tuple[Array, Array]:
    """Signs and levels as of ``ops.round_to_levels``, by way of packed codes, for which there are kernels."""
    top = s.bit_length()
    codes = ops.unpack_bits(ops.pack_rounded(x, scales, size, s, key), top + 1, ops.shape(x)[0])
    return ops.shift_right(codes, top), ops.bit_and(codes, (1 << top) - 1)


def flag_of_scales(ops: Kernels, scales: Array) -> Array:
    """Flag of a payload by its scales: `NONFINITE` if one is not finite, `EMPTY` if all are 0, or `NORMAL`; 0-d."""
    flag = ops.where(ops.all(ops.equal(scales, 0.0)), EMPTY, NORMAL)
    return ops.where(ops.all_finite(scales), flag, NONFINITE)


def read_scales(ops: Kernels, packed: Array) -> Array:
    """float32 scales of a payload; ``ValueError`` if one is not finite or negative."""
    scales = ops.from_bytes(packed, "float32")
    ops.require(ops.all_finite(scales), "payload: a scale is not finite")
    ops.require(ops.all(scales >= 0), "payload: a scale is negative")
    return scales
