"""Signs of entries, one bit each."""

from __future__ import annotations

from hvd_compress.codec import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["pack_signs", "signs_nbytes", "signs_of", "unpack_signs"]

_INFINITY = 0x7F800000


def signs_nbytes(n: int) -> int:
    """Bytes of the signs of n entries."""
    return -(-n // 8)


def pack_signs(ops: Kernels, negative: Array) -> Array:
    """Pack int64 `negative`, 1 for entries below zero; uint8."""
    return ops.pack_bits(negative, 1)


def unpack_signs(ops: Kernels, packed: Array, n: int) -> Array:
    """Undo `pack_signs`."""
    return ops.unpack_bits(packed, 1, n)


def signs_of(ops: Kernels, x: Array) -> Array:
    """1, -1 or 0 for each entry of float32 `x`, by its bits; inf and NaN stay what they are."""
    bits = ops.magnitude_bits(x)
    signs = ops.cast(bits > 0, "int64") * (1 - 2 * ops.negative(x))
    return ops.where(bits < _INFINITY, ops.cast(signs, "float32"), x)
