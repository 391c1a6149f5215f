"""Signs of entries, one bit each, and the mean magnitude of the entries of each sign."""

from __future__ import annotations

from hvd_compress.codec import Array
from hvd_compress.codecs._fit_rows import filled_rows
from hvd_compress.codecs._scales import read_scales, usable, wide_magnitudes
from hvd_compress.ops.kernels import Kernels

__all__ = ["class_means", "pack_means", "pack_signs", "signs_nbytes", "signs_of", "unpack_means", "unpack_signs"]

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


def class_means(ops: Kernels, x: Array, negative: Array, size: int) -> Array:
    """Mean magnitudes of the entries >= 0 of each bucket of `size` entries, then of those below; float32.

    0 stands for a class without entries, and for means that are too small.
    """
    below = ops.sum(filled_rows(ops, negative, size))
    starts = ops.arange(ops.shape(below)[0]) * size
    above = ops.clip(ops.shape(x)[0] - starts, 0, size) - below
    means = []
    for members, count in ((1 - negative, above), (negative, below)):
        wide = filled_rows(ops, wide_magnitudes(ops, ops.where(members > 0, x, 0.0)), size)
        sums = ops.flatten(ops.ordered_sums(wide))
        means.append(usable(ops, ops.float32(sums / ops.cast(ops.where(count > 0, count, 1), "float64"))))
    return ops.concat(means)


def pack_means(ops: Kernels, means: Array) -> Array:
    """Bytes of `class_means`; the means of entries below zero are negative there."""
    half = ops.shape(means)[0] // 2
    # Zero minus, so that there is no negative zero.
    return ops.to_bytes(ops.concat([means[:half], 0.0 - means[half:]]))


def unpack_means(ops: Kernels, packed: Array) -> tuple[Array, Array]:
    """Undo `pack_means`: mean magnitudes above and below zero; ``ValueError`` if they are damaged."""
    half = ops.shape(packed)[0] // 2
    below = -ops.from_bytes(packed[half:], "float32")
    return read_scales(ops, packed[:half]), read_scales(ops, ops.to_bytes(below))
