"""TensorFlow tensors and variables, eager or in a ``tf.function``; nothing is ever overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_compress.ops.base import Array
from hvd_compress.ops.denormals import add, divide, multiply, narrow
from hvd_compress.ops.graphs import GraphOps

__all__ = ["TensorflowOps"]


class TensorflowOps(GraphOps):
    """Operations that run where TensorFlow places them, or become part of the graph that is being built."""

    framework = "tensorflow"

    def owns(self, x: Any) -> bool:
        return isinstance(x, tf.Tensor | tf.Variable)

    def dtype(self, x: Array) -> str:
        return str(x.dtype.name)

    def shape(self, x: Array) -> tuple[int, ...]:
        return tuple(x.shape.as_list())

    def to_list(self, x: Array) -> list[Any]:
        return x.numpy().tolist()  # type: ignore[no-any-return]

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        return tf.reshape(x, shape)

    def constant(self, values: Sequence[float] | bytes, dtype: str) -> Array:
        return tf.convert_to_tensor(list(values), dtype)

    def zeros(self, numel: int, dtype: str = "float32") -> Array:
        return tf.zeros((numel,), dtype)

    def arange(self, numel: int) -> Array:
        return tf.range(_as(numel, tf.int64))

    def cast(self, x: Array, dtype: str) -> Array:
        return narrow(x) if (x.dtype, dtype) == (tf.float64, "float32") else tf.cast(x, dtype)

    def to_bytes(self, x: Array) -> Array:
        return tf.reshape(tf.bitcast(x, tf.uint8), (-1,))

    def from_bytes(self, x: Array, dtype: str) -> Array:
        size = tf.as_dtype(dtype).size
        return tf.bitcast(x if size == 1 else tf.reshape(x, (-1, size)), dtype)

    def concat(self, parts: Sequence[Array]) -> Array:
        return tf.concat(parts, 0)

    def take(self, x: Array, indices: Array) -> Array:
        return tf.gather(x, indices)

    def put(self, x: Array, indices: Array, values: Array | float) -> Array:
        if not self.owns(values):
            values = tf.fill(tf.shape(indices), tf.constant(values, x.dtype))
        return tf.tensor_scatter_nd_update(x, indices[:, None], values)

    def scatter_add(self, x: Array, indices: Array, values: Array) -> Array:
        return self.put(x, indices, add(tf.gather(x, indices), values))

    def nonzero(self, mask: Array) -> Array:
        return tf.reshape(tf.where(mask), (-1,))

    def count(self, x: Array, bins: int) -> Array:
        return tf.math.bincount(x, minlength=bins, maxlength=bins, dtype=tf.int64)

    def argsort(self, x: Array) -> Array:
        return tf.cast(tf.argsort(x, stable=True), tf.int64)

    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        dtype = next((value.dtype for value in (x, y) if not isinstance(value, int | float)), None)
        return tf.where(condition, _as(x, dtype), _as(y, dtype))

    def equal(self, x: Array, y: Array | float) -> Array:
        # In graphs of TensorFlow 1 the operator asks whether both are the same object.
        return tf.equal(x, y) if tf.is_tensor(x) or tf.is_tensor(y) else x == y

    def all(self, mask: Array) -> Array:
        return tf.reduce_all(mask)

    def is_finite(self, x: Array) -> Array:
        return tf.math.is_finite(x)

    def sum(self, x: Array, axis: int = -1) -> Array:
        return tf.reduce_sum(x if x.dtype.is_floating else tf.cast(x, tf.int64), axis)

    def cumsum(self, x: Array) -> Array:
        return tf.cumsum(x)

    def max(self, x: Array, axis: int = -1) -> Array:
        return tf.maximum(tf.reduce_max(x, axis), 0)

    def rows_fit(self, rows: Array, count: int, nbytes: int, head: bytes, tag: int) -> bool:
        # A graph has no rows yet.
        return False

    def floor(self, x: Array) -> Array:
        return tf.floor(x)

    def rint(self, x: Array) -> Array:
        return tf.math.rint(x)

    def sqrt(self, x: Array) -> Array:
        return tf.sqrt(x)

    def log(self, x: Array) -> Array:
        return tf.math.log(x)

    def cos(self, x: Array) -> Array:
        return tf.cos(x)

    def transpose(self, x: Array) -> Array:
        return tf.transpose(x)

    def matmul(self, x: Array, y: Array) -> Array:
        return tf.matmul(x, y)

    def shift_right(self, x: Array, bits: Array | int) -> Array:
        return tf.bitwise.right_shift(x, _as(bits, x.dtype))

    def shift_left(self, x: Array, bits: Array | int) -> Array:
        return tf.bitwise.left_shift(x, _as(bits, x.dtype))

    def bit_and(self, x: Array, y: Array | int) -> Array:
        return tf.bitwise.bitwise_and(x, _as(y, x.dtype))

    def bit_xor(self, x: Array, y: Array | int) -> Array:
        return tf.bitwise.bitwise_xor(x, _as(y, x.dtype))

    def clip(self, x: Array, low: Array | float, high: Array | float) -> Array:
        low, high = _as(low, x.dtype), _as(high, x.dtype)
        return tf.where(x < low, low, tf.where(x > high, high, x))

    def scale_add(self, x: Array, y: Array, decay: float, out: Array | None = None) -> Array:
        return add(x, y if decay == 1.0 else multiply(y, decay))

    def subtract(self, x: Array, y: Array, out: Array | None = None) -> Array:
        return add(x, -y)

    def scale(self, x: Array, factor: Array | float, out: Array | None = None) -> Array:
        return multiply(x, factor)

    def divide(self, x: Array, divisor: int) -> Array:
        return divide(x, divisor)

    def fill_zero(self, x: Array) -> Array:
        return tf.zeros_like(x)

    def assign(self, x: Array, values: Array) -> Array:
        return tf.reshape(tf.cast(values, x.dtype), tf.shape(x))

    def magnitude_bits(self, x: Array) -> Array:
        return self.bit_and(tf.bitcast(x, tf.int32), 0x7FFFFFFF)

    def select_largest(self, keys: Array, k: int) -> Array:
        n = self.shape(keys)[0]
        if k in (0, n):
            return self.arange(k)
        threshold = tf.reduce_min(tf.math.top_k(keys, k, sorted=False).values)
        above, equal = keys > threshold, self.nonzero(tf.equal(keys, threshold))
        # Of the entries at the threshold only the first ones are wanted.
        last = equal[k - 1 - tf.reduce_sum(tf.cast(above, tf.int64))]
        return self.with_length(self.nonzero(above | (tf.equal(keys, threshold) & (self.arange(n) <= last))), k)


def _as(value: Any, dtype: Any) -> Array:
    """A tensor of that dtype, also from a Python number, which tf.cast would make a float32 or int32 first."""
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.constant(value, dtype)
