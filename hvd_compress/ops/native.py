"""Array operations in C++, for arrays in a host's memory. Each gives the bits of the body that it replaces.

What the kernels do not take, other dtypes, strides and sizes, is left to the bodies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hvd_compress.generator import Key
from hvd_compress.native import kernels
from hvd_compress.ops.base import Array
from hvd_compress.ops.native_codes import NativeCodes

__all__ = ["NativeKernels"]

_SHARE_HELD = 3
"""Decoded entries take three times the memory of the gradient's: as many are held as take no more than it."""

_SHORT = 64
"""Rows or columns up to which a product is mostly the reading of the large factor, or the writing of the result."""

_HALF_STEP = int(np.float32(2.0**103).view(np.int32))
"""Magnitude bits of half the distance between the two largest numbers of float32."""


def _sums_finite(addends: Sequence[Array], decay: float) -> bool:
    """Whether all of ``x + decay * y`` are finite, where all of y are and `decay` is at most 1."""
    # Less than half a step added to the largest number gives that number: most often x alone need be read.
    return kernels.count_at_least(addends[0], _HALF_STEP) == 0 or bool(kernels.sums_finite(*addends, decay))


class NativeKernels(NativeCodes):
    """Comes before the class of a backend whose arrays share memory with NumPy's."""

    def largest(self, x: Array, k: int) -> Array:
        values = self.view(x)
        if values is None or values.size >= 2**32:
            return super().largest(x, k)
        return self.from_numpy(kernels.largest(values, k))

    def count_magnitudes(self, x: Array, shift: int) -> Array:
        values = self.view(x)
        if values is None:
            return super().count_magnitudes(x, shift)
        return self.from_numpy(kernels.count_magnitudes(values, shift, 1 << (31 - shift)))

    def at_least(self, x: Array, least: int, below: int = 1 << 31) -> Array:
        values = self.view(x)
        if values is None or values.size >= 2**32 or not 0 <= least < below:
            return super().at_least(x, least, below)
        return self.from_numpy(kernels.at_least(values, least, below))

    def count_at_least(self, x: Array, least: int) -> int:
        values = self.view(x)
        if values is None or least < 0:
            return super().count_at_least(x, least)
        return int(kernels.count_at_least(values, least))

    def all_finite(self, x: Array) -> Array:
        values = self.view(x)
        return super().all_finite(x) if values is None else self.from_numpy(np.array(kernels.all_finite(values)))

    def take(self, x: Array, indices: Array) -> Array:
        dtype = self.dtype(x)
        values = self.view(x, dtype) if dtype in ("float32", "int64") else None
        places = self.view(indices, "int64")
        if values is None or places is None or places.ndim != 1:
            return super().take(x, indices)  # type: ignore[safe-super]
        return self.from_numpy(kernels.take(values, places))

    def draw_strata(self, n: int, k: int, key: Key) -> tuple[Array, Array]:
        if n >= 2**32:
            return super().draw_strata(n, k, key)
        indices, sizes = kernels.draw_strata(n, k, *key)
        return self.from_numpy(indices), self.from_numpy(sizes)

    def scatter_add(self, x: Array, indices: Array, values: Array) -> Array:
        arrays = self.view(x), self.view(indices, "int64"), self.view(values)
        if any(array is None for array in arrays):
            return super().scatter_add(x, indices, values)  # type: ignore[safe-super]
        kernels.scatter_add(*arrays)
        return x

    def sum_entries(self, rows: Iterable[tuple[Array, Array]], factor: Array, total: Array) -> Array:
        into = self.view(total)
        if into is None:
            return super().sum_entries(rows, factor, total)
        waiting: list[tuple[Array, Array]] = []
        fresh, held = True, 0
        for indices, values in rows:
            # One pass over the sum for as many as can be held.
            if held > into.size // _SHARE_HELD:
                kernels.sum_entries(into, waiting, fresh, 1.0)
                waiting, fresh, held = [], False, 0
            waiting.append((self.as_numpy(indices), self.as_numpy(values)))
            held += self.shape(indices)[0]
        kernels.sum_entries(into, waiting, fresh, self.number(factor))
        return total

    def scale_add(self, x: Array, y: Array, decay: float, out: Array | None = None) -> Array:
        arrays = self.views(x, y)
        if arrays is None:
            return super().scale_add(x, y, decay, out)  # type: ignore[safe-super]
        into = self.room(x, out)
        kernels.scale_add(*arrays, decay, self.as_numpy(into))
        return into

    def scale(self, x: Array, factor: Array | float, out: Array | None = None) -> Array:
        values = self.view(x)
        if values is None or not isinstance(factor, float):
            return super().scale(x, factor, out)  # type: ignore[safe-super]
        into = self.room(x, out)
        kernels.scale(values, factor, self.as_numpy(into))
        return into

    def cast(self, x: Array, dtype: str) -> Array:
        own = self.dtype(x)
        if own == dtype:
            return x
        values = self.view(x, own) if {own, dtype} == {"float16", "float32"} else None
        if values is None:
            return super().cast(x, dtype)  # type: ignore[safe-super]
        out = np.empty(values.shape, dtype)
        if dtype == "float16":
            kernels.to_half(values, out.view(np.uint16))
        else:
            kernels.from_half(values.view(np.uint16), out)
        return self.from_numpy(out)

    def subtract(self, x: Array, y: Array, out: Array | None = None) -> Array:
        arrays = self.views(x, y)
        if arrays is None:
            return super().subtract(x, y, out)  # type: ignore[safe-super]
        into = self.room(x, out)
        kernels.subtract(*arrays, self.as_numpy(into))
        return into

    def accumulate(self, x: Array, residual: Array, decay: float, out: Array | None = None) -> Array:
        arrays = self.views(x, residual)
        if arrays is None or out is not residual or not _sums_finite(arrays, decay):
            return super().accumulate(x, residual, decay, out)
        return self.scale_add(x, residual, decay, residual)

    def accumulate_largest(
        self, x: Array, residual: Array, decay: float, k: int, out: Array | None = None
    ) -> tuple[Array, Array]:
        arrays = self.views(x, residual)
        if arrays is None or out is not residual or k == 0 or arrays[0].size >= 2**32:
            return super().accumulate_largest(x, residual, decay, k, out)
        if not _sums_finite(arrays, decay):
            return super().accumulate_largest(x, residual, decay, k, out)
        return residual, self.from_numpy(kernels.accumulate_largest(*arrays, decay, k))

    def add_momentum(
        self,
        x: Array,
        momentum: Array,
        velocity: Array,
        factor: float,
        nesterov: bool,
        out: tuple[Array, Array] | None = None,
    ) -> tuple[Array, Array]:
        arrays = self.views(x, momentum, velocity)
        if arrays is None:
            return super().add_momentum(x, momentum, velocity, factor, nesterov, out)
        room = (self.room(x, None), self.room(x, None)) if out is None else out
        in_place = room[0] is momentum
        if kernels.add_momentum(*arrays, factor, nesterov, self.as_numpy(room[0]), self.as_numpy(room[1]), in_place):
            return room
        return super().add_momentum(x, momentum, velocity, factor, nesterov)

    def fixed_unit(self, x: Array, bits: int) -> Array:
        values = self.view(x)
        if values is None or values.size == 0:
            return super().fixed_unit(x, bits)
        # The unit of a matrix is that of its largest entry.
        return super().fixed_unit(self.from_numpy(kernels.bucket_maxima(values, values.size)), bits)

    def product(self, x: Array, y: Array, out: Array | None = None) -> Array:
        (rows, depth), columns = self.shape(x), self.shape(y)[1]
        # Where no side is short, a library's product is faster.
        if {self.dtype(x), self.dtype(y)} != {"float32"} or min(rows, depth, columns) > _SHORT:
            return super().product(x, y, out)
        # It is the short factors that come transposed.
        factors = [np.ascontiguousarray(self.as_numpy(factor)) for factor in (x, y)]
        bits = self.factor_bits(depth)
        left, right = (self.number(self.fixed_unit(self.from_numpy(factor), bits)) for factor in factors)
        room = None if out is None else self.view(out)
        into = np.empty((rows, columns), np.float32) if room is None else room
        kernels.product(*factors, 1.0 / left, 1.0 / right, left * right, into)
        return self.from_numpy(into.reshape(rows, columns))

    def seal_row(self, sections: Sequence[Array], tag: int) -> Array:
        return self.from_numpy(kernels.seal_row([np.ascontiguousarray(self.as_numpy(x)) for x in sections], tag))

    def seal_fits(self, row: Array, tag: int) -> tuple[Array, Array]:
        return kernels.seal_fits(np.ascontiguousarray(self.as_numpy(row)), tag)  # type: ignore[no-any-return]

    def rows_fit(self, rows: Array, count: int, nbytes: int, head: bytes, tag: int) -> bool:
        return kernels.rows_fit(self.as_numpy(rows), count, nbytes, head, tag)  # type: ignore[no-any-return]
