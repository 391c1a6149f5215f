"""Matrix products that have the same bits in every framework and on every processor, and what is built on them.

In which order a library adds up a product is its own affair, and rounding depends on the order. So the factors are
first rounded to integers that are so short that float64 holds every sum of their products exactly: no sum is rounded,
and the order does not matter. Of k products to be added, the factors have (53 - log2 k) / 2 bits, at most 24, counted
from a matrix' largest entry down: 20 bits where k is 8,192. That is as good as the sums of float32 where it matters.
"""

from __future__ import annotations

import math

from hvd_compress.generator import Key
from hvd_compress.ops.base import Array
from hvd_compress.ops.rows import Rows

__all__ = ["Products"]

_EXACT_BITS = 53
_MOST_BITS = 24
_PARALLEL = 1e-8
"""Square of the share of a column that must not be in the earlier ones: less may be nothing but rounding."""


class Products(Rows):
    """Default bodies; overrides must return the same bits."""

    def product(self, x: Array, y: Array, out: Array | None = None) -> Array:
        """Matrix product of float32 `x` and `y`, float32; a factor with inf or NaN makes results that are not finite.

        Numbers below 2**-100 may be taken for zero. May overwrite `out`, float32 of the result's size.
        """
        bits = self.factor_bits(self.shape(x)[1])
        left, right = self.fixed_unit(x, bits), self.fixed_unit(y, bits)
        whole = self.matmul(self.fixed_point(x, left), self.fixed_point(y, right))
        # The sign of a zero depends on the order, too.
        return self.cast(self.where(self.equal(whole, 0.0), 0.0, whole) * (left * right), "float32")

    def orthonormal(self, x: Array) -> Array:
        """Make the columns of float32 matrix `x` orthonormal, by Gram-Schmidt in their order; float32.

        A column that lies within the earlier ones becomes zero.
        """
        rows, count = self.shape(x)
        whole = self.fixed_point(x, self.fixed_unit(x, self.factor_bits(rows)))
        inner = self.matmul(self.transpose(whole), whole)
        squares, numbers = inner, self.arange(count)
        # Each orthonormal column as a sum of the columns of `x`; a step takes its part out of those after it.
        combined = self.cast(self.equal(self.reshape(numbers, (-1, 1)), numbers), "float64")
        for i in range(count):
            left = inner[i : i + 1, i : i + 1]
            independent = left > squares[i : i + 1, i : i + 1] * _PARALLEL
            length = self.sqrt(self.where(independent | ~self.is_finite(left), left, 1.0))
            factor = self.where(independent | ~self.is_finite(left), 1.0 / length, 0.0)
            parts = inner[i : i + 1] * factor * self.cast(numbers > i, "float64")
            column = combined[:, i : i + 1] * factor
            combined = self.where(self.equal(numbers, i), column, combined - column * parts)
            inner = inner - self.transpose(parts) * parts
        total = whole[:, :1] * 0 + self.zeros(count, "float64")
        for i in range(count):
            total = total + whole[:, i : i + 1] * combined[i : i + 1]
        return self.cast(total, "float32")

    def gaussian(self, count: int, key: Key) -> Array:
        """`count` draws of the normal distribution, float32; equal up to the last bit (Box and Muller 1958)."""
        places = self.arange(count) * 2
        first, second = (self.cast(self.uniform(places + odd, key), "float64") for odd in (0, 1))
        radius = self.sqrt(self.log(first + 2.0**-25) * -2.0)
        return self.cast(radius * self.cos(second * (2 * math.pi)), "float32")

    def factor_bits(self, count: int) -> int:
        """Bits of factors of which `count` products are added up."""
        return min(_MOST_BITS, (_EXACT_BITS - max(0, count - 1).bit_length()) // 2)

    def fixed_unit(self, x: Array, bits: int) -> Array:
        """Power of two in which all of float32 `x` are integers of so many bits at most; one entry, float64."""
        exponent = self.shift_right(self.max(self.flatten(self.magnitude_bits(self.flatten(x)))), 23)
        # So that numbers below 2**-126, which some frameworks take for zero, are zero everywhere.
        exponent = self.where(exponent < bits + 1, bits + 1, exponent)
        field = self.reshape(self.cast(exponent, "int64"), (1,)) + (1023 - 126 - bits)
        return self.from_bytes(self.to_bytes(self.shift_left(field, 52)), "float64")

    def fixed_point(self, x: Array, unit: Array) -> Array:
        """Multiples of `unit` next to the entries of float32 `x`, as float64."""
        return self.rint(self.cast(x, "float64") * (1.0 / unit))
