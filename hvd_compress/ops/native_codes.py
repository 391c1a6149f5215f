"""Signs, sums of magnitudes and tables of values in C++; see :mod:`hvd_compress.ops.native`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_compress.generator import Key
from hvd_compress.native import kernels
from hvd_compress.ops.base import Array
from hvd_compress.ops.codes import TERMS
from hvd_compress.ops.native_levels import NativeLevels

__all__ = ["NativeCodes"]


class NativeCodes(NativeLevels):
    """What the kernels do for the bodies of `Codes`, and for those of `Packing` that pack by threes."""

    def pack_negative(self, x: Array, zero: int = 0) -> Array:
        values = self.view(x)
        if values is None:
            return super().pack_negative(x, zero)
        return self.from_numpy(kernels.pack_negative(values, bool(zero)))

    def signs(self, x: Array, out: Array | None = None) -> Array:
        arrays = self.views(x) if out is None else self.views(x, out)
        if arrays is None:
            return super().signs(x)
        into = self.room(x, out)
        kernels.signs(arrays[0], self.as_numpy(into))
        return into

    def magnitude_sums(self, x: Array, size: int, terms: Sequence[str]) -> Array:
        values = self.view(x)
        if values is None:
            return super().magnitude_sums(x, size, terms)
        sums: np.ndarray = kernels.magnitude_sums(values, size, [TERMS.index(term) for term in terms])
        return self.from_numpy(sums.reshape(len(terms), -(-values.size // size)))

    def power_codes(self, x: Array, offset: int, key: Key) -> Array:
        values = self.view(x)
        if values is None or values.size >= 2**32:
            return super().power_codes(x, offset, key)
        return self.from_numpy(kernels.power_codes(values, offset, *key))

    def subtract_codes(self, x: Array, packed: Array, bits: int, tables: Array, size: int) -> Array:
        if not self._sum_codes(x, [(packed, tables)], bits, size, False, True, 1.0):
            return super().subtract_codes(x, packed, bits, tables, size)
        return x

    def sum_codes(
        self, rows: Sequence[tuple[Array, Array]], bits: int, size: int, factor: Array, total: Array
    ) -> Array:
        if not self._sum_codes(total, rows, bits, size, True, False, self.number(factor)):
            return super().sum_codes(rows, bits, size, factor, total)
        return total

    def _sum_codes(
        self,
        x: Array,
        rows: Sequence[tuple[Array, Array]],
        bits: int,
        size: int,
        fresh: bool,
        negate: bool,
        factor: float,
    ) -> bool:
        """Whether the kernel has done it."""
        into = self.view(x)
        arrays = [(self.view(packed, "uint8"), self.view(tables)) for packed, tables in rows]
        if into is None or not 0 < bits <= 8 or any(array is None for row in arrays for array in row):
            return False
        kernels.sum_codes(into, arrays, bits, size, fresh, negate, factor)
        return True

    def pack_trits(self, pairs: Array, count: int) -> Array:
        values = self.view(pairs, "uint8")
        return (
            super().pack_trits(pairs, count) if values is None else self.from_numpy(kernels.pack_trits(values, count))
        )

    def unpack_trits(self, packed: Array, count: int) -> Array:
        values = self.view(packed, "uint8")
        if values is None:
            return super().unpack_trits(packed, count)
        pairs, good = kernels.unpack_trits(values, count)
        # The body says what is wrong.
        return self.from_numpy(pairs) if good else super().unpack_trits(packed, count)
