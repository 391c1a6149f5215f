"""Signs, magnitudes and powers of two of entries, and codes that stand for values of a table."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress.generator import Key
from hvd_compress.ops.base import Array
from hvd_compress.ops.levels import Levels

__all__ = ["TERMS", "Codes"]

TERMS = ("all", "squares", "above", "below", "negative")
"""What `Codes.magnitude_sums` adds up."""

_INFINITY = 0x7F800000
_SMALLEST = 0x00800000
"""Bits of 2**-126. Smaller magnitudes count as zero, because some processors take them for zero."""
_MANTISSA = 0x7FFFFF
_LARGEST_POWER = 127


class Codes(Levels):
    """Default bodies; overrides must return the same bits."""

    def pack_negative(self, x: Array, zero: int = 0) -> Array:
        """Pack a bit for each entry of float32 `x`: 1 below zero, 0 above, `zero` for zeros of both signs; uint8."""
        bits = self.where(self.equal(self.magnitude_bits(x), 0), zero, self.negative(x))
        return self.pack_bits(bits, 1)

    def signs(self, x: Array, out: Array | None = None) -> Array:
        """1, -1 or 0 for each entry of float32 `x`, by its bits; inf and NaN stay what they are.

        May overwrite `out`, which may be `x` itself.
        """
        bits = self.magnitude_bits(x)
        signs = self.cast(bits > 0, "int64") * (1 - 2 * self.negative(x))
        return self.where(bits < _INFINITY, self.cast(signs, "float32"), x)

    def wide_magnitudes(self, x: Array) -> Array:
        """Magnitudes of float32 `x` as float64, in which sums of them neither overflow nor lose small ones.

        Those below 2**-126 are zero.
        """
        bits = self.magnitude_bits(x)
        bits = self.cast(self.where(bits >= _SMALLEST, bits, 0), "int32")
        return self.cast(self.from_bytes(self.to_bytes(bits), "float32"), "float64")

    def magnitude_sums(self, x: Array, size: int, terms: Sequence[str]) -> Array:
        """Sums over each bucket of `size` entries of float32 `x`, in the order of `ordered_sums`; float64.

        A row for each of `terms`: of "all" magnitudes or of their "squares", of the magnitudes of entries "above" zero
        or "below", or of ones for entries that are "negative". Magnitudes below 2**-126 are zero.
        """
        return self.concat(
            [self.transpose(self.ordered_sums(self.filled_rows(self._terms_of(x, term), size))) for term in terms]
        )

    def _terms_of(self, x: Array, term: str) -> Array:
        if term == "negative":
            return self.cast(self.negative(x), "float64")
        if term in ("above", "below"):
            x = self.where(self.equal(self.negative(x), int(term == "below")), x, 0.0)
        wide = self.wide_magnitudes(x)
        return wide * wide if term == "squares" else wide

    def filled_rows(self, values: Array, size: int) -> Array:
        """Rows of `size` of 1-D `values` each, filled up with zeros to a power of two."""
        k, columns = self.shape(values)[0], 1 << (size - 1).bit_length()
        rows, dtype = -(-k // size), self.dtype(values)
        if rows <= 1 or columns == size:
            filled = self.concat([values, self.zeros(rows * columns - k, dtype)])
        else:
            starts, column = self.reshape(self.arange(rows) * size, (rows, 1)), self.arange(columns)
            place = self.where(column < self.clip(k - starts, 0, size), starts + column, k)
            filled = self.take(self.concat([values, self.zeros(1, dtype)]), self.flatten(place))
        return self.reshape(filled, (rows, columns))

    def power_codes(self, x: Array, offset: int, key: Key) -> Array:
        """Codes of float32 `x`, each entry rounded at random to one of the powers of two around it; uint8.

        The sign is the top bit, the others are the biased exponent less `offset`, limited to what they hold; those of
        magnitudes below 2**-126 are 0. The draw is that of the entry's position.
        """
        bits = self.cast(self.magnitude_bits(x), "int64")
        exponents = self.shift_right(bits, 23)
        draws = self.bit_and(self.random_bits(self.arange(self.shape(x)[0]), key), _MANTISSA)
        up = self.cast(draws < self.bit_and(bits, _MANTISSA), "int64")
        powers = self.where(exponents > 0, self.clip(exponents + up - offset, 0, _LARGEST_POWER), 0)
        return self.cast(self.shift_left(self.negative(x), 7) + powers, "uint8")

    def restore_codes(self, packed: Array, bits: int, tables: Array, size: int, n: int) -> Array:
        """Values of `n` packed codes of `bits` bits: `tables` holds, for each bucket, one for each code; float32."""
        codes = self.unpack_bits(packed, bits, n)
        if size < n:
            codes = codes + self.shift_left(self.spread(self.arange(-(-n // size)), size, n), bits)
        return self.take(tables, codes)

    def subtract_codes(self, x: Array, packed: Array, bits: int, tables: Array, size: int) -> Array:
        """``x - restore_codes(...)``; may overwrite `x`."""
        return self.subtract(x, self.restore_codes(packed, bits, tables, size, self.shape(x)[0]), x)

    def sum_codes(
        self, rows: Sequence[tuple[Array, Array]], bits: int, size: int, factor: Array, total: Array
    ) -> Array:
        """`factor` times the sum of what `rows` (codes, tables) restore to, in order; may overwrite `total`."""
        total = self.fill_zero(total)
        for packed, tables in rows:
            restored = self.restore_codes(packed, bits, tables, size, self.shape(total)[0])
            total = self.scale_add(total, restored, 1.0, total)
        return self.scale(total, factor, total)
