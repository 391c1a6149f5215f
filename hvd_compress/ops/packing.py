"""Integers as streams of bits, least significant bit of each byte first."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress.ops.base import Array, ArrayOps

__all__ = ["Packing"]

_POWERS_OF_3 = (1, 3, 9, 27, 81)


class Packing(ArrayOps):
    """Default bodies; overrides must return the same bits."""

    def flatten(self, x: Array) -> Array:
        """All entries in row-major order, 1-D."""
        return self.reshape(x, (-1,))

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
        if bits == 8:
            return self.cast(codes, "uint8")
        planes = self.bit_and(self.shift_right(self.reshape(codes, (-1, 1)), self.arange(bits)), 1)
        return self.bits_to_bytes(self.flatten(planes))

    def unpack_bits(self, packed: Array, bits: int, count: int) -> Array:
        """Undo `pack_bits`; int64, shape (count,)."""
        if bits == 0:
            return self.zeros(count, "int64")
        if bits == 8:
            # To that shape, because there may be too few.
            return self.reshape(self.cast(packed[:count], "int64"), (count,))
        planes = self.reshape(self.bytes_to_bits(packed)[: count * bits], (count, bits))
        return self.sum(self.shift_left(planes, self.arange(bits)))

    def pack_trits(self, pairs: Array, count: int) -> Array:
        """Pack `count` of 0, 1 and 2, of which `pairs` has two bits each, five in a byte, the first lowest; uint8."""
        trits = self.concat([self.unpack_bits(pairs, 2, count), self.zeros(-count % 5, "int64")])
        return self.cast(self.sum(self.reshape(trits, (-1, 5)) * self.constant(_POWERS_OF_3, "int64")), "uint8")

    def unpack_trits(self, packed: Array, count: int) -> Array:
        """Undo `pack_trits`; ``ValueError`` if a byte holds no five of them."""
        words = self.cast(packed, "int64")
        words = self.require(self.all(words < 3**5), "payload: a word is no radix number", words)
        quotients = self.reshape(words, (-1, 1)) // self.constant(_POWERS_OF_3, "int64")
        return self.pack_bits(self.flatten(quotients - quotients // 3 * 3)[:count], 2)

    def pack_positions(self, positions: Array, length: int) -> Array:
        """Bitmap of `length` bits with ones at distinct `positions`; uint8."""
        return self.bits_to_bytes(self.put(self.zeros(length, "uint8"), positions, 1))

    def unpack_positions(self, packed: Array) -> Array:
        """Rising positions of the ones of a bitmap; int64."""
        return self.nonzero(self.bytes_to_bits(packed))

    def pack_rising(self, indices: Array, low: int, length: int) -> Array:
        """Elias-Fano code of rising int64 `indices`: `low` bits of each, then a bitmap of `length` bits; uint8.

        Bit ``(indices[i] >> low) + i`` of the bitmap is set for every i.
        """
        high = self.shift_right(indices, low) + self.arange(self.length(indices))
        lows = self.pack_bits(self.bit_and(indices, (1 << low) - 1), low)
        return self.concat([lows, self.pack_positions(high, length)])

    def unpack_rising(self, packed: Array, n: int, k: int, low: int) -> Array:
        """Undo `pack_rising`; int64, shape (k,), rising and below `n`: ``ValueError`` if the bytes do not hold that."""
        split = -(-k * low // 8)
        high = self.find_ones(packed[split:], k) - self.arange(k)
        return self.require_rising(self.shift_left(high, low) + self.unpack_bits(packed[:split], low, k), n)

    def first_nonzero(self, mask: Array, k: int) -> Array:
        """Rising positions of the first `k` entries of `mask` that are not zero; its length where there is no more."""
        found, length = self.nonzero(mask)[:k], self.length(mask)
        return self.concat([found, self.zeros(k - self.length(found), "int64") + length])

    def find_ones(self, packed: Array, k: int) -> Array:
        """Positions of the ones of a bitmap, which must be `k`."""
        positions = self.unpack_positions(packed)
        message = f"payload: index bitmap does not hold {k} ones"
        return self.with_length(self.require(self.equal(self.length(positions), k), message, positions), k)

    def require_rising(self, indices: Array, n: int) -> Array:
        """Raise ``ValueError`` unless int64 `indices` rise and are below `n`."""
        indices = self.require(self.all(indices[1:] > indices[:-1]), "payload: indices do not rise", indices)
        return self.require(self.all(indices[-1:] < n), f"payload: an index is not below {n}", indices)

    def are_distinct(self, parts: Sequence[Array], n: int) -> Array:
        """Whether no index below `n` occurs twice in all of `parts`, each of which rises; 0-d boolean."""
        taken, distinct = self.zeros(n, "uint8"), self.all(self.zeros(0) >= 0)
        for indices in parts:
            distinct = distinct & self.all(self.equal(self.take(taken, indices), 0))
            taken = self.put(taken, indices, 1)
        return distinct
