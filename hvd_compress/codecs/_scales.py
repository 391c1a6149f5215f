"""Scales of quantised entries: what they are computed from, and when they stand for nothing."""

from __future__ import annotations

from hvd_compress.codec import Array
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import EMPTY, NONFINITE, NORMAL

__all__ = ["flag_of_scales", "read_scales", "usable"]

_TINY = 2.0**-100


def usable(ops: Kernels, scales: Array) -> Array:
    """float32 `scales` of at least 0 with zeros in place of those so small that dividing by them could overflow."""
    return ops.where(scales < _TINY, ops.zeros(1), scales)


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
