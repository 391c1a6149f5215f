"""Operations that have a readable body over the primitives; a backend or native code may override each for speed."""

from __future__ import annotations

from hvd_compress.generator import MASK, MIX_1, MIX_2, Key
from hvd_compress.ops.base import Array, ArrayOps

__all__ = ["Kernels"]


class Kernels(ArrayOps):
    """Default bodies; overrides must return the same bits."""

    def flatten(self, x: Array) -> Array:
        """All entries in row-major order, 1-D."""
        return self.reshape(x, (-1,))

    def float32(self, x: Array) -> Array:
        """Convert to float32; the same array if it is."""
        return self.cast(x, "float32")

    def all_finite(self, x: Array) -> Array:
        """Whether no entry is inf or NaN, as a 0-d boolean array."""
        return self.all(self.is_finite(x))

    def magnitude_bits(self, x: Array) -> Array:
        """Bits of |x| of a float32 array as int32: integers in the order of the magnitudes; inf and NaN come last."""
        return self.bit_and(self.from_bytes(self.to_bytes(x), "int32"), 0x7FFFFFFF)

    def count_magnitudes(self, x: Array, shift: int) -> Array:
        """How many entries of float32 `x` have each value of ``magnitude_bits >> shift``; int64."""
        return self.count(self.shift_right(self.magnitude_bits(x), shift), 1 << (31 - shift))

    def at_least(self, x: Array, least: int) -> Array:
        """Rising indices of the entries of float32 `x` whose magnitude bits are `least` or more."""
        return self.nonzero(self.magnitude_bits(x) >= least)

    def negative(self, x: Array) -> Array:
        """1 where float32 `x` is below zero, else 0 (-0.0 too); int64. By the bits: comparisons may miss denormals."""
        bits = self.from_bytes(self.to_bytes(x), "int32")
        return self.cast((bits < 0) & (bits > -(2**31)), "int64")

    def largest(self, x: Array, k: int) -> Array:
        """Rising indices of the `k` largest magnitudes of float32 `x`; ties go to the smaller index."""
        return self.select_largest(self.magnitude_bits(x), k)

    def bits_to_bytes(self, bits: Array) -> Array:
        """Pack 0/1 integers, least significant bit of each byte first; the last byte is filled with zeros."""
        padding = -self.length(bits) % 8
        # A length that is symbolic may turn out to need some.
        if not isinstance(padding, int) or padding:
            bits = self.concat([bits, self.zeros(padding, self.dtype(bits))])
        weights = self.constant((1, 2, 4, 8, 16, 32, 64, 128), "int64")
        return self.cast(self.sum(self.cast(self.reshape(bits, (-1, 8)), "int64") * weights), "uint8")

    def bytes_to_bits(self, packed: Array) -> Array:
        """Undo `bits_to_bytes`, as int64, without dropping the filling."""
        column = self.reshape(self.cast(packed, "int64"), (-1, 1))
        return self.flatten(self.bit_and(self.shift_right(column, self.arange(8)), 1))

    def pack_bits(self, codes: Array, bits: int) -> Array:
        """Pack int64 `codes`, entry i into bits [i*bits, (i+1)*bits) of an LSB-first stream; uint8."""
        if bits == 0:
            return self.zeros(0, "uint8")
        planes = self.bit_and(self.shift_right(self.reshape(codes, (-1, 1)), self.arange(bits)), 1)
        return self.bits_to_bytes(self.flatten(planes))

    def unpack_bits(self, packed: Array, bits: int, count: int) -> Array:
        """Undo `pack_bits`; int64, shape (count,)."""
        if bits == 0:
            return self.zeros(count, "int64")
        planes = self.reshape(self.bytes_to_bits(packed)[: count * bits], (count, bits))
        return self.sum(self.shift_left(planes, self.arange(bits)))

    def pack_positions(self, positions: Array, length: int) -> Array:
        """Bitmap of `length` bits with ones at distinct `positions`; uint8."""
        return self.bits_to_bytes(self.put(self.zeros(length, "uint8"), positions, 1))

    def unpack_positions(self, packed: Array) -> Array:
        """Rising positions of the ones of a bitmap; int64."""
        return self.nonzero(self.bytes_to_bits(packed))

    def next_nonzero(self, bits: Array) -> Array:
        """For each place of a 0/1 array the first place at or after it that holds a one; the length where none does."""
        ones = self.nonzero(bits)
        behind = self.concat([ones, self.constant((0,), "int64") + self.length(bits)])
        return self.take(behind, self.cumsum(bits) - bits)

    def ordered_sum(self, x: Array) -> Array:
        """Sum of a 1-D float64 array in an order that is the same in every framework; one entry."""
        half = 1 << max(0, self.shape(x)[0] - 1).bit_length()
        x = self.concat([x, self.zeros(half - self.shape(x)[0], "float64")])
        while half > 1:
            half //= 2
            x = x[:half] + x[half:]
        return x

    def random_bits(self, indices: Array, key: Key) -> Array:
        """32 random bits for each index in [0, 2**32); int64."""
        return self._mix(self.bit_and(self._mix(self.bit_xor(indices, key.k0)) + key.k1, MASK))

    def uniform(self, indices: Array, key: Key) -> Array:
        """Random float32 in [0, 1) for each index, multiples of 2**-24."""
        return self.cast(self.shift_right(self.random_bits(indices, key), 8), "float32") * 2.0**-24

    def _mix(self, x: Array) -> Array:
        x = self.bit_xor(x, self.shift_right(x, 16))
        x = self.bit_and(x * MIX_1, MASK)
        x = self.bit_xor(x, self.shift_right(x, 15))
        x = self.bit_and(x * MIX_2, MASK)
        return self.bit_xor(x, self.shift_right(x, 16))

    def round_floats(self, x: Array, dtype: str) -> Array:
        """Bytes of float32 `x` converted to `dtype`; 16-bit ones are limited to the finite range of float16 first."""
        return self.to_bytes(self.cast(self.limit(x, dtype), dtype))

    def limit(self, x: Array, dtype: str) -> Array:
        """Limit float32 `x` to +-65504 where `dtype` is float16, so that finite values stay finite."""
        return self.clip(x, -65504.0, 65504.0) if dtype == "float16" else x

    def read_floats(self, packed: Array, dtype: str) -> Array:
        """Undo `round_floats`, as float32."""
        if dtype == "bfloat16":
            halves = self.bit_and(self.cast(self.from_bytes(packed, "int16"), "int64"), 0xFFFF)
            return self.from_bytes(self.to_bytes(self.cast(self.shift_left(halves, 16), "int32")), "float32")
        return self.float32(self.from_bytes(packed, dtype))

    def check_word(self, words: Array) -> Array:
        """Sum of (2i+1) * words[i] mod 2**32 over int32 words taken as unsigned; 0-d int64."""
        odd = self.arange(self.length(words)) * 2 + 1
        return self.bit_and(self.sum(self.bit_and(self.cast(words, "int64"), MASK) * odd), MASK)
