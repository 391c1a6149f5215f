"""TensorFlow tensors and variables, eager or in a ``tf.function``; nothing is ever overwritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from hvd_compress.ops._numpy import NumpyOps
from hvd_compress.ops.base import Array
from hvd_compress.ops.denormals import add, multiply, narrow
from hvd_compress.ops.kernels import Kernels, Output

__all__ = ["TensorflowOps"]

T = TypeVar("T")


class TensorflowOps(Kernels):
    """Operations that run where TensorFlow places them, or become part of the graph that is being built."""

    framework = "tensorflow"

    def owns(self, x: Any) -> bool:
        return isinstance(x, tf.Tensor | tf.Variable)

    def dtype(self, x: Array) -> str:
        return str(x.dtype.name)

    def shape(self, x: Array) -> tuple[int, ...]:
        return tuple(x.shape.as_list())

    def length(self, x: Array) -> Any:
        known = x.shape[0]
        return tf.shape(x, out_type=tf.int64)[0] if known is None else known

    def integer(self, x: Array) -> Any:
        value = tf.reshape(x, ())
        return value if tf.is_symbolic_tensor(value) else int(value)

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
        if self.owns(x) or not self.owns(y):
            return tf.where(condition, x, _as(y, x.dtype) if self.owns(x) else y)
        return tf.where(condition, _as(x, y.dtype), y)

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

    def floor(self, x: Array) -> Array:
        return tf.floor(x)

    def rint(self, x: Array) -> Array:
        return tf.math.rint(x)

    def sqrt(self, x: Array) -> Array:
        return tf.sqrt(x)

    def shift_right(self, x: Array, bits: Array | int) -> Array:
        return tf.bitwise.right_shift(x, _as(bits, x.dtype))

    def shift_left(self, x: Array, bits: Array | int) -> Array:
        return tf.bitwise.left_shift(x, _as(bits, x.dtype))

    def bit_and(self, x: Array, y: Array | int) -> Array:
        return tf.bitwise.bitwise_and(x, _as(y, x.dtype))

    def bit_xor(self, x: Array, y: Array | int) -> Array:
        return tf.bitwise.bitwise_xor(x, _as(y, x.dtype))

    def clip(self, x: Array, low: float, high: float) -> Array:
        return tf.clip_by_value(x, _as(low, x.dtype), _as(high, x.dtype))

    def scale_add(self, x: Array, y: Array, decay: float, out: Array | None = None) -> Array:
        return add(x, y if decay == 1.0 else multiply(y, decay))

    def subtract(self, x: Array, y: Array) -> Array:
        return add(x, -y)

    def scale(self, x: Array, factor: Array) -> Array:
        return multiply(x, factor)

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
        above, equal = keys > threshold, self.nonzero(keys == threshold)
        # Of the entries at the threshold only the first ones are wanted.
        last = equal[k - 1 - tf.reduce_sum(tf.cast(above, tf.int64))]
        return tf.ensure_shape(self.nonzero(above | ((keys == threshold) & (self.arange(n) <= last))), (k,))

    def run_eagerly(
        self, function: Callable[..., Sequence[Array]], arguments: Sequence[Array], outputs: Sequence[Output]
    ) -> Sequence[Array]:
        dtypes = [dtype for dtype, _ in outputs]

        def call(*arrays: Array) -> list[Array]:
            # Single operations take TensorFlow some 50 times as long to start as NumPy.
            host = NumpyOps()
            with host.quiet():
                results = function(host, *(array.numpy() for array in arrays))
            return [tf.constant(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]

        if tf.executing_eagerly():
            return call(*arguments)
        results: list[Array] = tf.py_function(call, arguments, dtypes)
        for result, (_, shape) in zip(results, outputs, strict=True):
            result.set_shape(shape)
        return results

    def cond(self, predicate: Array, then: Callable[[], T], otherwise: Callable[[], T]) -> T:
        if tf.is_symbolic_tensor(predicate):
            return tf.cond(predicate, then, otherwise)  # type: ignore[no-any-return]
        return then() if predicate else otherwise()

    def require(self, predicate: Array, message: str) -> None:
        if tf.is_symbolic_tensor(predicate):
            tf.debugging.Assert(predicate, [message])
        elif not predicate:
            raise ValueError(message)


def _as(value: Any, dtype: Any) -> Array:
    """A tensor of that dtype, from another or from a Python number without rounding it to float32 or int32 first."""
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.constant(value, dtype)
