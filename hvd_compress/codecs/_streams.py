"""Numbers of some bits each, at places in a row of bits that are known on the device only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["Stream", "stream_bits"]


class Stream(NamedTuple):
    """The first `count` of some int64 `numbers`, `width` bits each, from bit `start` on; int64 arrays of one entry."""

    start: Array
    width: Array
    count: Array
    numbers: Array


def stream_bits(ops: Kernels, length: int, streams: Sequence[Stream]) -> Array:
    """The bits of streams that do not overlap and come in the order of their starts, the first of which is 0; int64."""
    starts, widths, counts, numbers = (ops.concat(parts) for parts in zip(*streams, strict=True))
    sizes = [ops.shape(stream.numbers)[0] for stream in streams]
    firsts = ops.constant([sum(sizes[:i]) for i in range(len(sizes))], "int64")
    place = ops.arange(length)
    # The last stream that begins at a bit or before it: those behind that begin there, too, are empty.
    own = place * 0 - 1
    for start in (stream.start for stream in streams):
        own = own + ops.cast(place >= start, "int64")
    offset, width = place - ops.take(starts, own), ops.take(widths, own)
    number = offset // ops.where(width > 0, width, 1)
    inside = (width > 0) & (number < ops.take(counts, own))
    bit = ops.where(inside, offset - number * width, 0)
    values = ops.take(numbers, ops.where(inside, ops.take(firsts, own) + number, 0))
    return ops.where(inside, ops.bit_and(ops.shift_right(values, bit), 1), 0)
