"""Packing and rounding in C++; see :mod:`hvd_compress.ops.native`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_compress.generator import Key
from hvd_compress.native import kernels
from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["NativeLevels"]

_MOST_BITS = 57


class NativeLevels(Kernels):
    """What the kernels do for the bodies of `Packing` and `Levels`."""

    @abstractmethod
    def as_numpy(self, x: Array) -> np.ndarray[Any, Any]:
        """The same memory as a NumPy array."""

    @abstractmethod
    def from_numpy(self, x: np.ndarray[Any, Any]) -> Array:
        """The same memory as an array of the backend."""

    def view(self, x: Array, dtype: str = "float32") -> np.ndarray[Any, Any] | None:
        """A contiguous array of that dtype as NumPy's, None for others."""
        if self.dtype(x) != dtype:
            return None
        values = self.as_numpy(x)
        return values if values.flags.c_contiguous else None

    def views(self, *arrays: Array) -> list[np.ndarray[Any, Any]] | None:
        """`view` of float32 arrays of one shape, None if one is not as the kernels take it."""
        found = [self.view(x) for x in arrays]
        if any(x is None or x.shape != found[0].shape for x in found):  # type: ignore[union-attr]
            return None
        return found  # type: ignore[return-value]

    def room(self, x: Array, out: Array | None) -> Array:
        """`out`, or room for float32 results of the shape of `x`."""
        return self.from_numpy(np.empty(self.shape(x), np.float32)) if out is None else out

    def number(self, x: Array) -> float:
        """Value of an array with one entry."""
        return float(self.as_numpy(x).reshape(()))

    def pack_bits(self, codes: Array, bits: int) -> Array:
        values = self.view(codes, "int64")
        if values is None or not 0 < bits <= _MOST_BITS:
            return super().pack_bits(codes, bits)
        return self.from_numpy(kernels.pack_bits(values, bits))

    def unpack_bits(self, packed: Array, bits: int, count: int) -> Array:
        values = self.view(packed, "uint8")
        if values is None or not 0 < bits <= _MOST_BITS:
            return super().unpack_bits(packed, bits, count)
        return self.from_numpy(kernels.unpack_bits(values, bits, count))

    def pack_positions(self, positions: Array, length: int) -> Array:
        values = self.view(positions, "int64")
        if values is None:
            return super().pack_positions(positions, length)
        return self.from_numpy(kernels.pack_positions(values, length))

    def unpack_positions(self, packed: Array) -> Array:
        values = self.view(packed, "uint8")
        return super().unpack_positions(packed) if values is None else self.from_numpy(kernels.unpack_positions(values))

    def pack_rising(self, indices: Array, low: int, length: int) -> Array:
        values = self.view(indices, "int64")
        if values is None or low > _MOST_BITS:
            return super().pack_rising(indices, low, length)
        return self.from_numpy(kernels.pack_rising(values, low, length))

    def unpack_rising(self, packed: Array, n: int, k: int, low: int) -> Array:
        values = self.view(packed, "uint8")
        if values is None or low > _MOST_BITS or 8 * values.size < k * low:
            return super().unpack_rising(packed, n, k, low)
        indices, fault = kernels.unpack_rising(values, n, k, low)
        # The body says what is wrong.
        return super().unpack_rising(packed, n, k, low) if fault else self.from_numpy(indices)

    def are_distinct(self, parts: Sequence[Array], n: int) -> Array:
        arrays = [self.view(part, "int64") for part in parts]
        if any(array is None for array in arrays):
            return super().are_distinct(parts, n)
        return self.from_numpy(np.array(kernels.are_distinct(arrays, n)))

    def bucket_maxima(self, x: Array, size: int) -> Array:
        values = self.view(x)
        if values is None:
            return super().bucket_maxima(x, size)
        return self.from_numpy(kernels.bucket_maxima(values, size))

    def pack_rounded(self, x: Array, scales: Array, size: int, s: int, key: Key | None) -> Array:
        arrays, bits = (self.view(x), self.view(scales)), s.bit_length() + 1
        if any(array is None for array in arrays) or bits > 8:
            return super().pack_rounded(x, scales, size, s, key)
        return self.from_numpy(kernels.pack_rounded(*arrays, size, s, bits, key is None, *(key or (0, 0))))

    def subtract_levels(self, x: Array, packed: Array, units: Array, size: int, s: int) -> Array:
        if not self._sum_levels(x, [(packed, units)], size, s, False, True, 1.0):
            return super().subtract_levels(x, packed, units, size, s)
        return x

    def sum_levels(self, rows: Sequence[tuple[Array, Array]], size: int, s: int, factor: Array, total: Array) -> Array:
        if not self._sum_levels(total, rows, size, s, True, False, self.number(factor)):
            return super().sum_levels(rows, size, s, factor, total)
        return total

    def _sum_levels(
        self,
        x: Array,
        rows: Sequence[tuple[Array, Array]],
        size: int,
        s: int,
        fresh: bool,
        negate: bool,
        factor: float,
    ) -> bool:
        """Whether the kernel has done it; where it has not, the body will, or says what is wrong."""
        into, bits = self.view(x), s.bit_length() + 1
        arrays = [(self.view(packed, "uint8"), self.view(units)) for packed, units in rows]
        if into is None or bits > 8 or any(array is None for row in arrays for array in row):
            return False
        done: bool = kernels.sum_levels(into, arrays, size, s, bits, fresh, negate, factor)
        return done

    def nearest_codes(self, x: Array, base: float, step: float, last: int) -> Array:
        values = self.view(x)
        if values is None or step == 0:
            return super().nearest_codes(x, base, step, last)
        return self.from_numpy(kernels.nearest_codes(values, base, step, last))

    def code_values(self, codes: Array, line: Array, last: int) -> Array:
        numbers = self.view(codes, "int64")
        if numbers is None:
            return super().code_values(codes, line, last)
        return self.from_numpy(kernels.code_values(numbers, *self.as_numpy(line).tolist(), last))

    def unpack_values(self, packed: Array, bits: int, count: int, line: Array) -> Array:
        stream = self.view(packed, "uint8")
        if stream is None or not 1 < bits <= 8:
            return super().unpack_values(packed, bits, count, line)
        table = self.code_values(self.arange(2**bits), line, 2 ** (bits - 1) - 1)
        return self.from_numpy(kernels.unpack_values(stream, bits, count, self.as_numpy(table)))

    def choose_widths(
        self, x: Array, ratios: Sequence[float], most: int, limit: int, codes_alone: bool
    ) -> tuple[int, list[tuple[Array, Array]]] | None:
        values = self.view(x)
        if values is None or values.size >= 2**32:
            return super().choose_widths(x, ratios, most, limit, codes_alone)
        largest, chosen = kernels.allocate(values, ratios, most, limit, codes_alone)
        return largest, [(self.from_numpy(indices), self.from_numpy(kept)) for indices, kept in chosen]

    def level_sums(
        self, x: Array, base: float, step: float, last: int, low: float
    ) -> tuple[float, float, float, float]:
        values = self.view(x)
        if values is None or step == 0:
            return super().level_sums(x, base, step, last, low)
        sums: tuple[float, float, float, float] = kernels.level_sums(values, base, step, last, low)
        return sums
