"""The primitives that a framework must offer so that every codec runs on its arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from hvd_compress.ops.control import Array, Control

__all__ = ["Array", "ArrayOps"]


class ArrayOps(Control):
    """Operations on one framework's arrays, on one device.

    dtypes go by name ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"). Integer work is done in
    int64 that holds unsigned 32-bit values, because torch has no uint32 arithmetic; products and sums wrap. Besides
    these methods codecs use the operators that all frameworks share: ``+ - * // & | ~``, ``< <= > >=`` and slices; all
    but ``//`` also of uint8, which wraps. Not ``==``, nor sums, differences and products of float32 in which numbers
    below 2**-126 matter.
    """

    framework: ClassVar[str]

    @abstractmethod
    def owns(self, x: Any) -> bool:
        """Whether `x` is an array of this framework and device."""

    @abstractmethod
    def dtype(self, x: Array) -> str:
        """Name of the dtype."""

    @abstractmethod
    def shape(self, x: Array) -> tuple[int, ...]:
        """Shape, as Python integers."""

    def length(self, x: Array) -> Any:
        """Length of a 1-D array, as an integer that one can count with: symbolic where a framework traces."""
        return self.shape(x)[0]

    def with_length(self, x: Array, length: int) -> Array:
        """1-D `x`, of which a check has shown that it has that length, for a framework that traces to know."""
        return x

    @abstractmethod
    def integer(self, x: Array) -> Any:
        """Value of an int64 array with one entry, as an integer that one can count with, as `length`."""

    @abstractmethod
    def to_list(self, x: Array) -> list[Any]:
        """Entries of a 1-D array as Python numbers. Nothing may be traced: only in what `run_eagerly` calls."""

    @abstractmethod
    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Same entries in row-major order, other shape."""

    @abstractmethod
    def constant(self, values: Sequence[float] | bytes, dtype: str) -> Array:
        """1-D array from Python numbers or bytes."""

    @abstractmethod
    def zeros(self, numel: int, dtype: str = "float32") -> Array:
        """1-D array of zeros."""

    @abstractmethod
    def arange(self, numel: int) -> Array:
        """0, 1, ... as int64."""

    @abstractmethod
    def cast(self, x: Array, dtype: str) -> Array:
        """Convert, rounding half to even; integers wrap. The same array if nothing changes."""

    @abstractmethod
    def to_bytes(self, x: Array) -> Array:
        """Little-endian bytes of a 1-D array, as uint8."""

    @abstractmethod
    def from_bytes(self, x: Array, dtype: str) -> Array:
        """1-D array of which `x` holds the little-endian bytes; inverse of `to_bytes`. Never bfloat16."""

    @abstractmethod
    def concat(self, parts: Sequence[Array]) -> Array:
        """Join 1-D arrays of one dtype."""

    @abstractmethod
    def take(self, x: Array, indices: Array) -> Array:
        """Entries of 1-D `x` at `indices` (int64)."""

    @abstractmethod
    def put(self, x: Array, indices: Array, values: Array | float) -> Array:
        """`x` with the entries at distinct `indices` replaced; may overwrite `x`."""

    @abstractmethod
    def scatter_add(self, x: Array, indices: Array, values: Array) -> Array:
        """`x` with `values` added at distinct `indices`; may overwrite `x`."""

    @abstractmethod
    def nonzero(self, mask: Array) -> Array:
        """Rising positions at which a 1-D array is not zero, as int64."""

    @abstractmethod
    def count(self, x: Array, bins: int) -> Array:
        """How often each of 0, 1, ..., bins-1 occurs in 1-D int32 `x`, which holds nothing else; int64."""

    @abstractmethod
    def argsort(self, x: Array) -> Array:
        """Indices that sort a 1-D int64 or float64 array; of equal entries the earlier one stays first."""

    @abstractmethod
    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        """Choose by entry."""

    @abstractmethod
    def equal(self, x: Array, y: Array | float) -> Array:
        """``x == y`` by entry, also of integers that may be symbolic. The operator may compare objects instead."""

    @abstractmethod
    def all(self, mask: Array) -> Array:
        """Whether all entries of a boolean array hold, as a 0-d boolean array."""

    @abstractmethod
    def is_finite(self, x: Array) -> Array:
        """Entry by entry: neither inf nor NaN."""

    @abstractmethod
    def sum(self, x: Array, axis: int = -1) -> Array:
        """Sum along an axis; integers in int64, wrapping."""

    @abstractmethod
    def cumsum(self, x: Array) -> Array:
        """Running sums of a 1-D int64 array, each including its own entry."""

    @abstractmethod
    def max(self, x: Array, axis: int = -1) -> Array:
        """Largest integer along an axis; 0 where there is none."""

    @abstractmethod
    def floor(self, x: Array) -> Array:
        """Round down, still floating-point."""

    @abstractmethod
    def rint(self, x: Array) -> Array:
        """Round to the nearest integer, half to even, still floating-point."""

    @abstractmethod
    def sqrt(self, x: Array) -> Array:
        """Square root."""

    @abstractmethod
    def log(self, x: Array) -> Array:
        """Natural logarithm, up to the last bit."""

    @abstractmethod
    def cos(self, x: Array) -> Array:
        """Cosine, up to the last bit."""

    @abstractmethod
    def transpose(self, x: Array) -> Array:
        """Rows of a matrix as columns."""

    @abstractmethod
    def matmul(self, x: Array, y: Array) -> Array:
        """Product of float64 matrices, with sums in any order: only where all of them are exact is it the same."""

    @abstractmethod
    def shift_right(self, x: Array, bits: Array | int) -> Array:
        """``x >> bits`` of non-negative integers."""

    @abstractmethod
    def shift_left(self, x: Array, bits: Array | int) -> Array:
        """``x << bits`` of integers."""

    @abstractmethod
    def bit_and(self, x: Array, y: Array | int) -> Array:
        """``x & y`` of integers."""

    @abstractmethod
    def bit_xor(self, x: Array, y: Array | int) -> Array:
        """``x ^ y`` of integers."""

    @abstractmethod
    def clip(self, x: Array, low: Array | float, high: Array | float) -> Array:
        """Limit each entry, to a number or an array with one entry; NaN stays NaN."""

    @abstractmethod
    def scale_add(self, x: Array, y: Array, decay: float, out: Array | None = None) -> Array:
        """``x + decay * y`` of float32 arrays, each product and sum rounded; a new array, or `out` overwritten."""

    @abstractmethod
    def subtract(self, x: Array, y: Array, out: Array | None = None) -> Array:
        """``x - y`` of float32 arrays; a new array, or `out` overwritten."""

    @abstractmethod
    def scale(self, x: Array, factor: Array | float, out: Array | None = None) -> Array:
        """``x * factor`` of float32 arrays; a new array, or `out` overwritten."""

    @abstractmethod
    def divide(self, x: Array, divisor: int) -> Array:
        """``x / divisor`` of a float32 array, rounded once; not times the reciprocal. `divisor` in [1, 2**20]."""

    @abstractmethod
    def fill_zero(self, x: Array) -> Array:
        """Zeros in the place of `x`, which may be overwritten."""

    @abstractmethod
    def assign(self, x: Array, values: Array) -> Array:
        """`x` with all entries replaced by those of an array of any device; may overwrite `x`."""

    @abstractmethod
    def select_largest(self, keys: Array, k: int) -> Array:
        """Rising indices of the `k` largest integer keys, 0 <= k <= n; of equal keys the smaller index wins."""
