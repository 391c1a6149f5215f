"""float32 arithmetic in TensorFlow that keeps numbers below 2**-126, which its kernels otherwise take for zero.

Most calls find none and cost a comparison more. Where there are some, the arithmetic is done in float64, in which the
numbers are not small, and rounded once more: twice rounded is the same as once for sums and products of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import tensorflow as tf

from hvd_compress.ops.base import Array

__all__ = ["add", "divide", "host_thread", "multiply", "narrow"]

_SAFE = 1 << 28
"""Bits of 2**-95: a sum is right if an operand is larger, because a number below 2**-126 does not change it."""
_SMALLEST_NORMAL = 1 << 23


def add(x: Array, y: Array) -> Array:
    """``x + y`` of float32 arrays."""
    either = tf.bitwise.bitwise_or(_magnitude(x), _magnitude(y))
    return _choose((either > 0) & (either < _SAFE), lambda: narrow(_wide(x) + _wide(y)), lambda: x + y)


def multiply(x: Array, factor: Array | float) -> Array:
    """``x * factor`` of a float32 array and a float32 array or number."""
    factor = tf.convert_to_tensor(factor, tf.float32)
    product = x * factor
    lost = (_magnitude(product) < _SAFE) & (_magnitude(x) > 0)
    return _choose(lost, lambda: narrow(_wide(x) * _wide(factor)), lambda: product)


def divide(x: Array, divisor: int) -> Array:
    """``x / divisor`` of a float32 array and an integer in [1, 2**20].

    TensorFlow's graphs multiply by the reciprocal of a constant. In float64 that does no harm: a quotient that is no
    float32 is further away from where rounding changes than float64 is wrong.
    """
    return narrow(_wide(x) / divisor)


def narrow(x: Array) -> Array:
    """Round float64 to float32."""
    units = tf.math.rint(tf.minimum(tf.abs(x) * 2.0**149, float(_SMALLEST_NORMAL)))
    bits = tf.cast(units, tf.int32)
    small = tf.bitcast(tf.where(x < 0, tf.bitwise.bitwise_or(bits, tf.int32.min), bits), tf.float32)
    return tf.where((bits > 0) & (tf.abs(x) < 2.0**-126), small, tf.cast(x, tf.float32))


@lru_cache(maxsize=1)
def host_thread() -> ThreadPoolExecutor:
    """One thread for NumPy. On the threads that run TensorFlow's graphs NumPy too takes small numbers for zero."""
    pool = ThreadPoolExecutor(1)
    # A thread treats numbers as the one does that starts it: let that be this one, not one of TensorFlow's.
    pool.submit(int).result()
    return pool


def _wide(x: Array) -> Array:
    """Convert float32 to float64."""
    units = tf.cast(_magnitude(x), tf.float64) * 2.0**-149
    small = tf.where(tf.bitcast(x, tf.int32) < 0, -units, units)
    return tf.where(_magnitude(x) < _SMALLEST_NORMAL, small, tf.cast(x, tf.float64))


def _magnitude(x: Array) -> Array:
    return tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), 0x7FFFFFFF)


def _choose(special: Array, exact: Callable[[], Array], fast: Callable[[], Array]) -> Array:
    found = tf.reduce_any(special)
    if tf.is_symbolic_tensor(found):
        return tf.cond(found, exact, fast)
    return exact() if found else fast()
