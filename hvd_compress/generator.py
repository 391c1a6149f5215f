"""Keys of the counter-based random generator: value = f(seed, step, name, stream, rank, chunk, index).

Nothing is stored and nothing global is touched, so draws are the same in every framework, need no checkpoint, and
leave the user's own generators alone. The mixer is C. Wellons' public-domain hash *lowbias32*. The draws themselves
are array operations (:meth:`hvd_compress.ops.ArrayOps.random_bits`).
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

__all__ = [
    "BASIS",
    "MASK",
    "MIX_1",
    "MIX_2",
    "ROUNDING",
    "SAMPLING",
    "SHARED_SELECTION",
    "SKETCH",
    "Key",
    "Site",
    "generator_key",
    "mix",
]

MASK = 0xFFFFFFFF
MIX_1 = 0x7FEB352D
MIX_2 = 0x846CA68B

ROUNDING = 0
SHARED_SELECTION = 1
SAMPLING = 2
BASIS = 3
SKETCH = 4
_SHARED_STREAMS = frozenset({SHARED_SELECTION, BASIS, SKETCH})


class Site(NamedTuple):
    """Who encodes what, and when.

    Attributes
    ----------
    name : str
        The tensor's name, equal on every rank.
    step : int
        Optimizer steps so far, from 0.
    rank, world_size : int
        This worker and the number of workers.
    chunk : int
        Number of the piece of a tensor that was split.
    """

    name: str
    step: int
    rank: int = 0
    world_size: int = 1
    chunk: int = 0


class Key(NamedTuple):
    """The two 32-bit words that a stream of draws starts from."""

    k0: int
    k1: int


def mix(x: int) -> int:
    """Mix 32 bits; a bijection of [0, 2**32)."""
    x ^= x >> 16
    x = x * MIX_1 & MASK
    x ^= x >> 15
    x = x * MIX_2 & MASK
    return x ^ x >> 16


def generator_key(seed: int, site: Site, stream: int) -> Key:
    """Derive the key of one stream of draws.

    Parameters
    ----------
    seed : int
        The user's seed, in [0, 2**64).
    site : Site
        Tensor, step and rank. Streams that all ranks share ignore the rank.
    stream : int
        What the draws are for: 0 rounding, 1 shared selection, 2 threshold sampling, 3 PowerSGD, 4 sketch.

    Raises
    ------
    ValueError
        If seed, step or rank is out of range.
    """
    rank = 0 if stream in _SHARED_STREAMS else site.rank
    for what, value, bits in (("seed", seed, 64), ("step", site.step, 64), ("rank", rank, 32)):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{what} must be in [0, 2**{bits}), got {value}")
    name = zlib.crc32(site.name.encode("utf-8"))
    words = (seed & MASK, seed >> 32, site.step & MASK, site.step >> 32, name, stream, rank, site.chunk)
    state = 0x243F6A88
    for word in words:
        state = mix(state ^ word) + 0x9E3779B9 & MASK
    return Key(state, mix(state ^ 0x85EBCA6B))
