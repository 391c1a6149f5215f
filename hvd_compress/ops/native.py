"""Array operations in C++, for arrays in a host's memory. Each gives the bits of the body that it replaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_compress.native import kernels
from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["NativeKernels"]


class NativeKernels(Kernels):
    """Comes before the class of a backend whose arrays share memory with NumPy's.

    What the kernels do not take, other dtypes, strides and sizes, is left to the backend.
    """

    def as_numpy(self, x: Array) -> np.ndarray[Any, Any]:
        """The same memory as a NumPy array."""
        raise NotImplementedError

    def from_numpy(self, x: np.ndarray[Any, Any]) -> Array:
        """The same memory as an array of the backend."""
        raise NotImplementedError

    def largest(self, x: Array, k: int) -> Array:
        values = self._floats(x)
        if values is None or values.size >= 2**32:
            return super().largest(x, k)
        return self.from_numpy(kernels.largest(values, k))

    def count_magnitudes(self, x: Array, shift: int) -> Array:
        values = self._floats(x)
        if values is None:
            return super().count_magnitudes(x, shift)
        return self.from_numpy(kernels.count_magnitudes(values, shift, 1 << (31 - shift)))

    def at_least(self, x: Array, least: int) -> Array:
        values = self._floats(x)
        if values is None or values.size >= 2**32:
            return super().at_least(x, least)
        return self.from_numpy(kernels.at_least(values, least))

    def all_finite(self, x: Array) -> Array:
        values = self._floats(x)
        return super().all_finite(x) if values is None else self.from_numpy(np.array(kernels.all_finite(values)))

    def scale_add(self, x: Array, y: Array, decay: float, out: Array | None = None) -> Array:
        arrays = self._floats(x), self._floats(y)
        if any(array is None for array in arrays) or self.shape(x) != self.shape(y):
            return super().scale_add(x, y, decay, out)  # type: ignore[safe-super]
        into = self._room(x, out)
        kernels.scale_add(*arrays, decay, self.as_numpy(into))
        return into

    def subtract(self, x: Array, y: Array, out: Array | None = None) -> Array:
        arrays = self._floats(x), self._floats(y)
        if any(array is None for array in arrays) or self.shape(x) != self.shape(y):
            return super().subtract(x, y, out)  # type: ignore[safe-super]
        into = self._room(x, out)
        kernels.subtract(*arrays, self.as_numpy(into))
        return into

    def check_word(self, words: Array) -> Array:
        values = self.as_numpy(words)
        if not values.flags.c_contiguous:
            return super().check_word(words)
        return self.constant((kernels.check_word(values.view(np.uint32)),), "int64").reshape(())

    def _floats(self, x: Array) -> np.ndarray[Any, Any] | None:
        """A contiguous float32 array as NumPy's, None for others."""
        if self.dtype(x) != "float32":
            return None
        values = self.as_numpy(x)
        return values if values.flags.c_contiguous else None

    def _room(self, x: Array, out: Array | None) -> Array:
        if out is not None:
            return out
        return self.from_numpy(np.empty(self.shape(x), np.float32))
