"""Operations that have a readable body over the primitives; a backend or native code may override each for speed."""

from __future__ import annotations

from collections.abc import Iterable

from hvd_compress.ops.base import Array
from hvd_compress.ops.products import Products

__all__ = ["Kernels"]


class Kernels(Products):
    """Default bodies; overrides must return the same bits."""

    def float32(self, x: Array) -> Array:
        """Convert to float32; the same array if it is."""
        return self.cast(x, "float32")

    def all_finite(self, x: Array) -> Array:
        """Whether no entry is inf or NaN, as a 0-d boolean array."""
        return self.all(self.is_finite(x))

    def count_magnitudes(self, x: Array, shift: int) -> Array:
        """How many entries of float32 `x` have each value of ``magnitude_bits >> shift``; int64."""
        return self.count(self.shift_right(self.magnitude_bits(x), shift), 1 << (31 - shift))

    def at_least(self, x: Array, least: int, below: int = 1 << 31) -> Array:
        """Rising indices of the entries of float32 `x` whose magnitude bits are in [least, below)."""
        bits = self.magnitude_bits(x)
        # The largest int32 is the largest that there can be.
        return self.nonzero((bits >= least) & (bits <= below - 1))

    def count_at_least(self, x: Array, least: int) -> int:
        """How many magnitude bits of float32 `x` are `least` or more. Nothing may be traced."""
        reached = self.magnitude_bits(x) >= least
        return int(self.integer(self.sum(self.cast(reached, "int64"))))

    def largest(self, x: Array, k: int) -> Array:
        """Rising indices of the `k` largest magnitudes of float32 `x`; ties go to the smaller index."""
        return self.select_largest(self.magnitude_bits(x), k)

    def next_nonzero(self, bits: Array) -> Array:
        """For each place of a 0/1 array the first place at or after it that holds a one; the length where none does."""
        ones = self.nonzero(bits)
        behind = self.concat([ones, self.constant((0,), "int64") + self.length(bits)])
        return self.take(behind, self.cumsum(bits) - bits)

    def accumulate(self, x: Array, residual: Array, decay: float, out: Array | None = None) -> Array:
        """``x + decay * residual`` of float32 arrays, each product and sum rounded.

        `residual` is finite, `decay` in [0, 1]. May overwrite `out`; if that is `residual` itself, then only where
        every sum is finite.
        """
        return self.scale_add(x, residual, decay, None if out is residual else out)

    def accumulate_largest(
        self, x: Array, residual: Array, decay: float, k: int, out: Array | None = None
    ) -> tuple[Array, Array]:
        """`accumulate`, and the rising indices of the `k` largest magnitudes of its sums."""
        total = self.accumulate(x, residual, decay, out)
        return total, self.largest(total, k)

    def momentum(self, x: Array, momentum: Array, factor: float, nesterov: bool, out: Array | None = None) -> Array:
        """``factor * momentum + x``, with Nesterov ``factor * (momentum + x)``; each product and sum rounded."""
        if nesterov:
            return self.scale_add(self.zeros(1), self.scale_add(x, momentum, 1.0), factor, out)
        return self.scale_add(x, momentum, factor, out)

    def add_momentum(
        self,
        x: Array,
        momentum: Array,
        velocity: Array,
        factor: float,
        nesterov: bool,
        out: tuple[Array, Array] | None = None,
    ) -> tuple[Array, Array]:
        """New `momentum` of gradient `x`, and `velocity` with it (with Nesterov: it and `x`) added; float32.

        May overwrite `out`; if these are `momentum` and `velocity` themselves, then only where all results are finite.
        """
        room = (None, None) if out is None or out[0] is momentum else out
        momentum = self.momentum(x, momentum, factor, nesterov, room[0])
        step = self.scale_add(momentum, x, 1.0) if nesterov else momentum
        return momentum, self.scale_add(step, velocity, 1.0, room[1])

    def sum_entries(self, rows: Iterable[tuple[Array, Array]], factor: Array, total: Array) -> Array:
        """`factor` times the sum of `rows`, each rising int64 indices and float32 values; may overwrite `total`."""
        total = self.fill_zero(total)
        for indices, values in rows:
            total = self.scatter_add(total, indices, values)
        return self.scale(total, factor, total)

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
