"""Products of large matrices in pieces that stay in a processor's cache."""

from __future__ import annotations

import numpy as np

from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["Blocks"]

_ENTRIES = 1 << 17


class Blocks(Kernels):
    """For NumPy's arrays; the bits of the bodies that it replaces, because all sums are exact."""

    def product(self, x: Array, y: Array, out: Array | None = None) -> Array:
        (rows, depth), columns = x.shape, y.shape[1]
        bits = self.factor_bits(depth)
        left, right = self.fixed_unit(x, bits), self.fixed_unit(y, bits)
        unit, size = left * right, max(1, _ENTRIES // max(1, min(rows, depth) + columns))
        if depth > rows:
            total = np.zeros((rows, columns))
            for start in range(0, depth, size):
                part = slice(start, start + size)
                total += self.fixed_point(x[:, part], left) @ self.fixed_point(y[part], right)
            return self._rounded(total, unit)
        factor, room = self.fixed_point(y, right), np.empty(rows * columns, np.float32) if out is None else out
        result = room.reshape(rows, columns)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            result[part] = self._rounded(self.fixed_point(x[part], left) @ factor, unit)
        return result

    def fixed_unit(self, x: Array, bits: int) -> Array:
        # The largest entry by its value, in one read: that of a matrix with NaN is NaN, like inf too large for a unit.
        low, high = (float(bound) for bound in (x.min(initial=0), x.max(initial=0)))
        largest = np.float32(max(-low, high) if low == low else low)
        return super().fixed_unit(np.full(1, largest, np.float32), bits)

    def fixed_point(self, x: Array, unit: Array) -> Array:
        scaled = np.multiply(x, 1.0 / unit, dtype=np.float64)
        return np.rint(scaled, out=scaled)

    def _rounded(self, whole: Array, unit: Array) -> Array:
        # Adding zero makes a negative zero a positive one.
        np.add(whole, 0.0, out=whole)
        return np.multiply(whole, unit, out=whole).astype(np.float32)
