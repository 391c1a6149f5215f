"""What differs between TensorFlow's eager mode and the graphs that it traces: lengths, branches, checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from hvd_compress.ops._numpy import numpy_ops
from hvd_compress.ops.control import Array, Output
from hvd_compress.ops.denormals import host_thread
from hvd_compress.ops.kernels import Kernels

__all__ = ["NUMPY", "GraphOps", "uses_numpy"]

T = TypeVar("T")

NUMPY = "HVD_COMPRESS_TF_NUMPY"
"""Environment variable; 0 keeps TensorFlow's own operations also where no GPU is visible."""


def uses_numpy() -> bool:
    """Whether Python functions get NumPy arrays, which are faster in a host's memory, and not TensorFlow's tensors."""
    return os.environ.get(NUMPY, "1") != "0" and not tf.config.list_physical_devices("GPU")


class GraphOps(Kernels):
    """The operations that do something else in a graph; it must be that of a ``tf.function``."""

    def length(self, x: Array) -> Any:
        known = x.shape[0]
        return tf.shape(x, out_type=tf.int64)[0] if known is None else known

    def with_length(self, x: Array, length: int) -> Array:
        if tf.is_symbolic_tensor(x):
            # Not tf.ensure_shape or tf.reshape: their own checks would speak before ours.
            x.set_shape((length,))
        return x

    def integer(self, x: Array) -> Any:
        value = tf.reshape(x, ())
        return value if tf.is_symbolic_tensor(value) else int(value)

    def run_eagerly(
        self, function: Callable[..., Sequence[Array]], arguments: Sequence[Array], outputs: Sequence[Output]
    ) -> Sequence[Array]:
        dtypes, thread = [dtype for dtype, _ in outputs], host_thread()

        def call(*arrays: Array) -> list[Array]:
            if not uses_numpy():
                return list(function(self, *arrays))
            # Single operations take TensorFlow some 50 times as long to start as NumPy.
            results = thread.submit(_on_host, function, [array.numpy() for array in arrays]).result()
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

    def require(self, predicate: Array, message: Any, guarded: Array = None) -> Array:
        if tf.is_symbolic_tensor(predicate):
            if not predicate.graph.building_function:
                raise RuntimeError("a graph of TensorFlow 1 would leave checks out: call this in a tf.function")
            # A tf.function runs it in any case, because it is stateful.
            with tf.control_dependencies([tf.debugging.Assert(predicate, [message])]):
                return None if guarded is None else tf.identity(guarded)
        if not predicate:
            raise ValueError(message)
        return guarded

    def text(self, template: str, *values: Any) -> Any:
        symbolic = any(tf.is_symbolic_tensor(value) for value in values)
        return tf.strings.format(template, values) if symbolic else super().text(template, *values)


def _on_host(function: Callable[..., Sequence[Any]], arrays: Sequence[Any]) -> Sequence[Any]:
    with numpy_ops.quiet():
        return function(numpy_ops, *arrays)
