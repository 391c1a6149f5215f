"""What JointSQ's allocation may spend, and what an allocation costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hvd_compress.codec import Array
from hvd_compress.indices import index_nbytes
from hvd_compress.ops.kernels import Kernels

__all__ = ["HEADER", "WIDTHS", "Budget", "ValueBudget", "WireBudget", "index_code", "section_nbytes", "used_nbytes"]

WIDTHS = (2, 4, 8)
HEADER = 40
"""Bytes of a payload before the indices: common header, three counts, base and step of each width."""


class WireBudget(NamedTuple):
    """All bytes of the payload of a tensor of `numel` entries."""

    numel: int
    nbytes: int

    @property
    def limit(self) -> int:
        """What `fits` compares with."""
        return self.nbytes

    @property
    def fixed(self) -> bool:
        """Whether payloads are filled up to `nbytes`."""
        return True

    @property
    def most_entries(self) -> int:
        """More than these cannot be sent, however their bits are spread."""
        return self.most_of(WIDTHS[0])

    def most_of(self, width: int) -> int:
        """More than these cannot get so many bits."""
        return _most_entries(self.numel, self.nbytes, WIDTHS.index(width))

    def fits(self, ops: Kernels, reached: Sequence[Array]) -> Array:
        """Whether prefixes fit; `reached` says how many entries get at least 2, at least 4 and 8 bits."""
        first, second, third = reached
        kept = (first - second, second - third, third)
        sections = [section_nbytes(ops, self.numel, k, width) for k, width in zip(kept, WIDTHS, strict=True)]
        return HEADER + sections[0] + sections[1] + sections[2] <= self.nbytes

    def may_fit(self, ops: Kernels, least: Sequence[Array], most: Sequence[Array]) -> Array:
        """Whether a prefix that reaches at least `least` and at most `most` entries could fit."""
        possible = least[0] <= self.most_entries
        total = least[0] * 0 + HEADER
        for low, high, width in zip(least, [*most[1:], 0], WIDTHS, strict=True):
            kept = ops.clip(low - high, 0, self.numel)
            # A section of 2 or 4 bits can shrink by a byte where it gains entries.
            slack = ops.cast(kept > 0, "int64") * int(width < 8)
            total = total + section_nbytes(ops, self.numel, kept, width) - slack
        return possible & (total <= self.nbytes)


class ValueBudget(NamedTuple):
    """Bits of the codes alone, as JointSQ's authors count them, of a tensor of `numel` entries."""

    numel: int
    bits: int

    @property
    def limit(self) -> int:
        """As for `WireBudget`."""
        return self.bits

    @property
    def fixed(self) -> bool:
        """As for `WireBudget`."""
        return False

    @property
    def most_entries(self) -> int:
        """As for `WireBudget`."""
        return min(self.numel, self.bits // 2)

    @property
    def nbytes(self) -> int:
        """More than any payload has: as if each width got all bits."""
        most = [min(self.numel, self.bits // width) for width in WIDTHS]
        # A section can shrink by a byte where it gains entries.
        return used_nbytes(self.numel, most) + len(WIDTHS)

    def fits(self, ops: Kernels, reached: Sequence[Array]) -> Array:
        """As for `WireBudget`."""
        return 2 * reached[0] + 2 * reached[1] + 4 * reached[2] <= self.bits

    def may_fit(self, ops: Kernels, least: Sequence[Array], most: Sequence[Array]) -> Array:
        """As for `WireBudget`."""
        return self.fits(ops, least)


Budget = WireBudget | ValueBudget


@lru_cache(maxsize=4096)
def _most_entries(numel: int, nbytes: int, place: int) -> int:
    # They cost least as one set, of 2 bits each; where bytes are rounded, up to a byte more for each section.
    low, high = 0, numel
    while low < high:
        middle = (low + high + 1) // 2
        if used_nbytes(numel, [middle if other == place else 0 for other in range(len(WIDTHS))]) - 16 <= nbytes:
            low = middle
        else:
            high = middle - 1
    return low


def used_nbytes(numel: int, kept: Sequence[int]) -> int:
    """Bytes of a payload, filling excluded, with so many entries of 2, 4 and 8 bits."""
    return HEADER + sum(index_nbytes(numel, k) + -(-k * width // 8) for k, width in zip(kept, WIDTHS, strict=True))


def section_nbytes(ops: Kernels, numel: int, k: Array, width: int) -> Array:
    """Bytes of the indices and the codes of k entries of one width, for int64 `k`; as `used_nbytes` counts."""
    return index_code(ops, numel, k)[2] + (k * width + 7) // 8


def index_code(ops: Kernels, numel: int, k: Array) -> tuple[Array, Array, Array]:
    """How `encode_indices` encodes k of them, for int64 `k`: as a bitmap or not, low bits of each, bytes of all."""
    some = ops.where(k > 0, k, 1)
    # The exponent of the float64 is the logarithm, rounded down.
    quotient = ops.cast((k * 0 + numel) // some, "float64")
    low = ops.shift_right(ops.from_bytes(ops.to_bytes(quotient), "int64"), 52) - 1023
    high = ops.shift_right(k * 0 + (numel - 1), low)
    elias_fano = (k * low + 7) // 8 + (k + high + 8) // 8
    bitmap = 4 * k >= numel
    return bitmap, low, ops.where(k > 0, ops.where(bitmap, (numel + 7) // 8, elias_fano), 0)
