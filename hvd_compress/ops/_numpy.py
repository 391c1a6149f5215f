"""NumPy arrays: the reference that the other backends must equal bit for bit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from hvd_compress import native
from hvd_compress.ops.base import Array
from hvd_compress.ops.blocks import Blocks
from hvd_compress.ops.native import NativeKernels

__all__ = ["NumpyOps", "numpy_ops"]

T = TypeVar("T")
_NAMES = {
    np.dtype(name): name for name in ("float32", "float16", "float64", "int64", "int32", "int16", "uint8", "bool")
}


class NumpyOps(Blocks):
    """NumPy's bfloat16 is the package ml_dtypes'; without it results of that dtype are float32 holding such values."""

    framework = "numpy"

    def owns(self, x: Any) -> bool:
        return isinstance(x, np.ndarray | np.generic)

    def dtype(self, x: Array) -> str:
        # Its str takes ten times as long.
        name = _NAMES.get(x.dtype)
        return str(x.dtype) if name is None else name

    def shape(self, x: Array) -> tuple[int, ...]:
        return tuple(x.shape)

    def integer(self, x: Array) -> int:
        return int(x.reshape(()))

    def to_list(self, x: Array) -> list[Any]:
        return x.tolist()  # type: ignore[no-any-return]

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        return x.reshape(shape)

    def constant(self, values: Sequence[float] | bytes, dtype: str) -> Array:
        if isinstance(values, bytes):
            return np.frombuffer(values, np.uint8).astype(dtype)
        return np.array(values, dtype)

    def zeros(self, numel: int, dtype: str = "float32") -> Array:
        return np.zeros(numel, dtype)

    def arange(self, numel: int) -> Array:
        return np.arange(numel, dtype=np.int64)

    def cast(self, x: Array, dtype: str) -> Array:
        if self.dtype(x) == dtype:
            return x
        if dtype == "bfloat16":
            rounded = _round_to_bfloat16(np.asarray(x, np.float32))
            return rounded.astype(dtype) if "ml_dtypes" in sys.modules else rounded
        with self.quiet():
            return np.asarray(x).astype(dtype, copy=False)

    def to_bytes(self, x: Array) -> Array:
        return np.ascontiguousarray(x).view(np.uint8)

    def from_bytes(self, x: Array, dtype: str) -> Array:
        return np.ascontiguousarray(x).view(dtype)

    def round_floats(self, x: Array, dtype: str) -> Array:
        if dtype == "bfloat16":
            return self.to_bytes(_round_to_bfloat16(x).view(np.uint16)[1::2])
        return super().round_floats(x, dtype)

    def concat(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts)

    def take(self, x: Array, indices: Array) -> Array:
        return x[indices]

    def put(self, x: Array, indices: Array, values: Array | float) -> Array:
        x[indices] = values
        return x

    def scatter_add(self, x: Array, indices: Array, values: Array) -> Array:
        x[indices] += values
        return x

    def nonzero(self, mask: Array) -> Array:
        return np.flatnonzero(mask)

    def count(self, x: Array, bins: int) -> Array:
        counts = np.zeros(bins, np.int64)
        # bincount converts to int64: in blocks, the copies stay in the cache.
        for start in range(0, x.shape[0], 1 << 18):
            counts += np.bincount(x[start : start + (1 << 18)], minlength=bins)
        return counts

    def argsort(self, x: Array) -> Array:
        return np.argsort(x, kind="stable")

    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        return np.where(condition, x, y)

    def equal(self, x: Array, y: Array | float) -> Array:
        return x == y

    def all(self, mask: Array) -> Array:
        return mask.all()

    def is_finite(self, x: Array) -> Array:
        return np.isfinite(x)

    def sum(self, x: Array, axis: int = -1) -> Array:
        return np.sum(x, axis=axis)

    def cumsum(self, x: Array) -> Array:
        return np.cumsum(x)

    def max(self, x: Array, axis: int = -1) -> Array:
        return np.max(x, axis=axis, initial=0)

    def floor(self, x: Array) -> Array:
        return np.floor(x)

    def rint(self, x: Array) -> Array:
        return np.rint(x)

    def sqrt(self, x: Array) -> Array:
        return np.sqrt(x)

    def log(self, x: Array) -> Array:
        return np.log(x)

    def cos(self, x: Array) -> Array:
        return np.cos(x)

    def transpose(self, x: Array) -> Array:
        return x.T

    def matmul(self, x: Array, y: Array) -> Array:
        return x @ y

    def shift_right(self, x: Array, bits: Array | int) -> Array:
        return np.right_shift(x, bits)

    def shift_left(self, x: Array, bits: Array | int) -> Array:
        return np.left_shift(x, bits)

    def bit_and(self, x: Array, y: Array | int) -> Array:
        return np.bitwise_and(x, y)

    def bit_xor(self, x: Array, y: Array | int) -> Array:
        return np.bitwise_xor(x, y)

    def clip(self, x: Array, low: Array | float, high: Array | float) -> Array:
        return np.clip(x, low, high)

    def scale_add(self, x: Array, y: Array, decay: float, out: Array | None = None) -> Array:
        with self.quiet():
            return np.add(x, y if decay == 1.0 else y * np.float32(decay), out=out)

    def subtract(self, x: Array, y: Array, out: Array | None = None) -> Array:
        with self.quiet():
            return np.subtract(x, y, out=out)

    def scale(self, x: Array, factor: Array | float, out: Array | None = None) -> Array:
        with self.quiet():
            return np.multiply(x, factor, out=out)

    def divide(self, x: Array, divisor: int) -> Array:
        return np.divide(x, np.float32(divisor))

    def fill_zero(self, x: Array) -> Array:
        x.fill(0)
        return x

    def assign(self, x: Array, values: Array) -> Array:
        # A tensor may be on another device.
        x[...] = values.cpu() if hasattr(values, "cpu") else values
        return x

    def select_largest(self, keys: Array, k: int) -> Array:
        n = keys.shape[0]
        if k == 0 or k == n:
            return self.arange(k)
        threshold = np.partition(keys, n - k)[n - k]
        above = np.flatnonzero(keys > threshold)
        equal = np.flatnonzero(keys == threshold)[: k - above.shape[0]]
        return np.sort(np.concatenate([above, equal]))

    def bits_to_bytes(self, bits: Array) -> Array:
        return np.packbits(bits.astype(bool), bitorder="little")

    def bytes_to_bits(self, packed: Array) -> Array:
        return np.unpackbits(packed, bitorder="little").astype(np.int64)

    def quiet(self) -> AbstractContextManager[Any]:
        return np.errstate(over="ignore", invalid="ignore")

    def cond(self, predicate: Array, then: Callable[[], T], otherwise: Callable[[], T]) -> T:
        return then() if predicate else otherwise()

    def require(self, predicate: Array, message: Any, guarded: Array = None) -> Array:
        if not predicate:
            raise ValueError(message)
        return guarded


def _round_to_bfloat16(x: Array) -> Array:
    """Round float32 to the nearest value that bfloat16 can hold, half to even; still float32."""
    bits = x.view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.astype(np.uint32).view(np.float32))


class _NativeNumpyOps(NativeKernels, NumpyOps):
    def as_numpy(self, x: Array) -> Array:
        return np.asarray(x)

    def from_numpy(self, x: Array) -> Array:
        return x


numpy_ops = NumpyOps() if native.kernels is None else _NativeNumpyOps()
"""The operations of NumPy arrays here."""
