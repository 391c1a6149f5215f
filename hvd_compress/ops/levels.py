"""Random draws, and entries rounded to levels."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress.generator import MASK, MIX_1, MIX_2, Key
from hvd_compress.ops.base import Array
from hvd_compress.ops.packing import Packing

__all__ = ["Levels"]

LARGEST_FLOAT = 3.4028234663852886e38


class Levels(Packing):
    """Default bodies; overrides must return the same bits."""

    def random_bits(self, indices: Array, key: Key) -> Array:
        """32 random bits for each index in [0, 2**32); int64."""
        return self._mix(self.bit_and(self._mix(self.bit_xor(indices, key.k0)) + key.k1, MASK))

    def uniform(self, indices: Array, key: Key) -> Array:
        """Random float32 in [0, 1) for each index, multiples of 2**-24."""
        return self.cast(self.shift_right(self.random_bits(indices, key), 8), "float32") * 2.0**-24

    def draw_strata(self, n: int, k: int, key: Key) -> tuple[Array, Array]:
        """One random index of each of `k` blocks that share out 0..n-1, rising, and the blocks' sizes; int64."""
        blocks = self.arange(k)
        low = blocks * n // max(1, k)
        size = (blocks + 1) * n // max(1, k) - low
        return low + self.shift_right(self.random_bits(blocks, key) * size, 32), size

    def _mix(self, x: Array) -> Array:
        x = self.bit_xor(x, self.shift_right(x, 16))
        x = self.bit_and(x * MIX_1, MASK)
        x = self.bit_xor(x, self.shift_right(x, 15))
        x = self.bit_and(x * MIX_2, MASK)
        return self.bit_xor(x, self.shift_right(x, 16))

    def bucket_maxima(self, x: Array, size: int) -> Array:
        """Largest magnitude of each bucket of `size` entries of float32 `x`; the last bucket may be short."""
        n = self.shape(x)[0]
        filled = self.concat([x, self.zeros(-n % size)])
        bits = self.reshape(self.magnitude_bits(filled), (-1, size))
        return self.from_bytes(self.to_bytes(self.max(bits)), "float32")

    def round_to_levels(
        self, x: Array, scales: Array, size: int, s: int, key: Key | None, positions: Array | None = None
    ) -> tuple[Array, Array]:
        """Round ``|x| * s / scale`` of each bucket's entries to 0..s; return signs (1: negative) and levels, int64.

        At random between the two levels around, with the draw of the entry's position, or to the nearest without a
        `key`. Buckets of scale 0 get zeros.
        """
        n = self.shape(x)[0]
        used = self.where(scales > 0, scales, 1.0)
        # An array, because torch multiplies a number by the reciprocal of what it is divided by.
        y = self.where(x < 0, -x, x) * self.spread(self.constant((s,), "float32") / used, size, n)
        if key is None:
            levels = self.rint(y)
        else:
            levels = self.floor(y)
            draws = self.uniform(self.arange(n) if positions is None else positions, key)
            levels = levels + self.cast(draws < y - levels, "float32")
        live = self.spread(self.cast(scales > 0, "int64"), size, n)
        return self.negative(x) * live, self.cast(self.clip(levels, 0.0, float(s)), "int64") * live

    def pack_rounded(self, x: Array, scales: Array, size: int, s: int, key: Key | None) -> Array:
        """`round_to_levels` of a whole tensor, packed: the sign is the code's top bit; uint8."""
        bits = s.bit_length() + 1
        negative, levels = self.round_to_levels(x, scales, size, s, key)
        return self.pack_bits(self.shift_left(negative, bits - 1) + levels, bits)

    def restore_levels(self, packed: Array, units: Array, size: int, s: int, n: int) -> Array:
        """``+-level * unit`` of `n` codes, with each bucket's unit; ``ValueError`` if a level is above `s`."""
        top = s.bit_length()
        codes = self.unpack_bits(packed, top + 1, n)
        levels = self.bit_and(codes, (1 << top) - 1)
        self.require(self.all(levels <= s), f"payload: a code is above the top level {s}")
        values = self.cast(levels, "float32") * self.spread(units, size, n)
        return self.where(self.shift_right(codes, top) > 0, -values, values)

    def subtract_levels(self, x: Array, packed: Array, units: Array, size: int, s: int) -> Array:
        """``x - restore_levels(...)``; may overwrite `x`."""
        return self.subtract(x, self.restore_levels(packed, units, size, s, self.shape(x)[0]), x)

    def sum_levels(self, rows: Sequence[tuple[Array, Array]], size: int, s: int, factor: Array, total: Array) -> Array:
        """`factor` times the sum of what `rows` (codes, units) restore to, in their order; may overwrite `total`."""
        total = self.fill_zero(total)
        for packed, units in rows:
            restored = self.restore_levels(packed, units, size, s, self.shape(total)[0])
            total = self.scale_add(total, restored, 1.0, total)
        return self.scale(total, factor, total)

    def spread(self, values: Array, size: int, n: int) -> Array:
        """Each bucket's value for each of its entries."""
        ones = self.cast(self.zeros(size), self.dtype(values)) + 1
        return self.flatten(self.reshape(values, (-1, 1)) * ones)[:n]

    def nearest_codes(self, x: Array, base: float, step: float, last: int) -> Array:
        """Codes of float32 `x` on the levels ``base + j * step``, j in 0..last: j nearest to ``|x|``, and the sign.

        int64; the sign bit is the lowest that no j needs. With step 0 all j are 0.
        """
        return self.signed_codes(x, self.cast(self._nearest(x, base, step, last), "int64"), last)

    def signed_codes(self, x: Array, levels: Array, last: int) -> Array:
        """Codes of the signs of `x` and int64 `levels` in 0..last, as of `nearest_codes`."""
        return self.shift_left(self.negative(x), last.bit_length()) + levels

    def code_values(self, codes: Array, line: Array, last: int) -> Array:
        """``+-(base + j * step)`` of codes, `line` being base and step; float32, each product and sum rounded."""
        return self.line_values(codes, line[:1], line[1:], last)

    def line_values(self, codes: Array, base: Array, step: Array, last: int) -> Array:
        """`code_values` with a base and a step for each code, or one of each for all."""
        sign = last.bit_length()
        levels = self.cast(self.bit_and(codes, (1 << sign) - 1), "float32")
        values = self.scale_add(base, self.scale(levels, step), 1.0)
        # A line through values near float32's largest may end beyond it.
        values = self.clip(values, -LARGEST_FLOAT, LARGEST_FLOAT)
        return self.where(self.shift_right(codes, sign) > 0, -values, values)

    def unpack_values(self, packed: Array, bits: int, count: int, line: Array) -> Array:
        """`code_values` of packed codes of `bits` bits."""
        return self.code_values(self.unpack_bits(packed, bits, count), line, 2 ** (bits - 1) - 1)

    def level_sums(
        self, x: Array, base: float, step: float, last: int, low: float
    ) -> tuple[float, float, float, float]:
        """Sums over j, j**2, d and j*d, for the j of `nearest_codes` and d = ``|x| - low``. Nothing may be traced."""
        levels, distances = self._nearest(x, base, step, last), self._magnitudes(x) - low
        # Sums of integers are exact in any order, those of distances are not.
        sums = [self.reshape(self.sum(term), (1,)) for term in (levels, levels * levels)]
        sums += [self.ordered_sum(term) for term in (distances, levels * distances)]
        j, jj, d, jd = self.to_list(self.concat(sums))
        return j, jj, d, jd

    def choose_widths(
        self, x: Array, ratios: Sequence[float], most: int, limit: int, codes_alone: bool
    ) -> tuple[int, list[tuple[Array, Array]]] | None:
        """What `hvd_compress.codecs._allocation.allocate` does, where there is a kernel for it, else None.

        Returns the bits of the largest magnitude, 0 below 2**-126, and indices and values of each width.
        """
        return None

    def _magnitudes(self, x: Array) -> Array:
        return self.cast(self.from_bytes(self.to_bytes(self.magnitude_bits(x)), "float32"), "float64")

    def _nearest(self, x: Array, base: float, step: float, last: int) -> Array:
        if step == 0:
            return self._magnitudes(x) * 0
        # An array, because some frameworks multiply by the reciprocal of a number.
        places = (self._magnitudes(x) - base) / self.constant((step,), "float64")
        return self.clip(self.rint(places), 0.0, float(last))

    def ordered_sum(self, x: Array) -> Array:
        """Sum of a 1-D float64 array in an order that is the same in every framework; one entry."""
        length = 1 << max(0, self.shape(x)[0] - 1).bit_length()
        return self.ordered_sums(self.concat([x, self.zeros(length - self.shape(x)[0], "float64")]))

    def ordered_sums(self, x: Array) -> Array:
        """`ordered_sum` of each row of float64 `x`, whose length is a power of two; shape (..., 1)."""
        half = self.shape(x)[-1]
        while half > 1:
            half //= 2
            x = x[..., :half] + x[..., half:]
        return x

    def magnitude_bits(self, x: Array) -> Array:
        """Bits of |x| of a float32 array as int32: integers in the order of the magnitudes; inf and NaN come last."""
        return self.bit_and(self.from_bytes(self.to_bytes(x), "int32"), 0x7FFFFFFF)

    def negative(self, x: Array) -> Array:
        """1 where float32 `x` is below zero, else 0 (-0.0 too); int64. By the bits: comparisons may miss denormals."""
        bits = self.from_bytes(self.to_bytes(x), "int32")
        return self.cast((bits < 0) & (bits > -(2**31)), "int64")
