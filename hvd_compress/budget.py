"""One budget for all tensors of a model: those with the larger entries get more of it.

Every so many steps each rank counts the magnitudes of every tensor in bins. The counts are added over the ranks, and
all ranks derive the same share of each tensor. It stays fixed until the next time, and payload sizes with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_compress.codec import Codec
from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import TensorSpec

__all__ = ["BINS", "BINS_PER_OCTAVE", "count_magnitudes", "shares"]

_SHIFT = 18
BINS = 0x7F800000 >> _SHIFT
"""Bins of finite magnitudes; they are the leading bits of the float32."""
BINS_PER_OCTAVE = 0x800000 >> _SHIFT


def count_magnitudes(ops: Kernels, x: Array) -> Array:
    """Entries of float32 `x` in each bin, without inf and NaN; int64, shape (BINS,)."""
    return ops.count_magnitudes(x, _SHIFT)[:BINS]


def shares(codecs: Sequence[Codec], specs: Sequence[TensorSpec], counts: Array, world_size: int) -> list[int]:
    """Share each tensor's part of what all of them may spend together.

    Parameters
    ----------
    codecs, specs : sequence
        One for each tensor.
    counts : array, shape (tensors, BINS)
        Of `count_magnitudes`, added over the ranks; NumPy.
    world_size : int
        Number of ranks.

    Returns
    -------
    list of int
        What each tensor may spend, in the codecs' unit. The same on every rank.
    """
    total = sum(codec.cost(spec) for codec, spec in zip(codecs, specs, strict=True))
    backwards = np.cumsum(np.asarray(counts, np.int64)[:, ::-1], axis=1)[:, ::-1] // world_size
    above = np.concatenate([backwards, np.zeros_like(backwards[:, :1])], axis=1)

    def at(lowest: int) -> list[int]:
        return [codec.cost_at(spec, row, lowest) for codec, spec, row in zip(codecs, specs, above, strict=True)]

    # Spending grows as the lowest bin falls, but for a few bytes of index codes: bisection finds where it is used up.
    affordable, too_low = BINS, -1
    while affordable - too_low > 1:
        middle = (affordable + too_low) // 2
        if sum(at(middle)) <= total:
            affordable = middle
        else:
            too_low = middle
    base = at(affordable)
    if too_low < 0 or sum(base) > total:
        return base
    more = [max(0, cost - own) for cost, own in zip(at(too_low), base, strict=True)]
    left = total - sum(base)
    return [own + left * extra // max(1, sum(more)) for own, extra in zip(base, more, strict=True)]
