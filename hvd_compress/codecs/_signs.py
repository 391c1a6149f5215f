"""The mean magnitude of the entries of each sign, for codecs that send signs."""

from __future__ import annotations

from hvd_compress.codec import Array
from hvd_compress.codecs._scales import read_scales, usable
from hvd_compress.ops.kernels import Kernels

__all__ = ["class_means", "pack_means", "signs_nbytes", "tables_of_means"]


def signs_nbytes(n: int) -> int:
    """Bytes of the signs of n entries."""
    return -(-n // 8)


def class_means(ops: Kernels, x: Array, size: int) -> Array:
    """Mean magnitudes of the entries >= 0 of each bucket of `size` entries, then of those below; float32.

    0 stands for a class without entries, and for means that are too small.
    """
    sums = ops.magnitude_sums(x, size, ("above", "below", "negative"))
    below = ops.cast(sums[2], "int64")
    starts = ops.arange(ops.shape(below)[0]) * size
    counts = ops.clip(ops.shape(x)[0] - starts, 0, size) - below, below
    means = [
        ops.float32(total / ops.cast(ops.where(count > 0, count, 1), "float64"))
        for total, count in zip((sums[0], sums[1]), counts, strict=True)
    ]
    return usable(ops, ops.concat(means))


def pack_means(ops: Kernels, means: Array) -> Array:
    """Bytes of `class_means`; the means of entries below zero are negative there."""
    half = ops.shape(means)[0] // 2
    # Zero minus, so that there is no negative zero.
    return ops.to_bytes(ops.concat([means[:half], 0.0 - means[half:]]))


def tables_of_means(ops: Kernels, packed: Array) -> Array:
    """Undo `pack_means`: what signs stand for, as ``ops.restore_codes`` takes it; ``ValueError`` if it is damaged."""
    half = ops.shape(packed)[0] // 2
    above = read_scales(ops, packed[:half])
    below = read_scales(ops, ops.to_bytes(-ops.from_bytes(packed[half:], "float32")))
    pairs = ops.reshape(ops.concat([above, -below]), (2, ops.shape(above)[0]))
    return ops.flatten(ops.transpose(pairs))
