"""Sums over the ranks that are parts of a graph; each runs when its arguments are there, and nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_compress.codec import Array
from hvd_compress.tensorflow.bridge import call

__all__ = ["sum_if_any", "sum_twice"]


def sum_if_any(counts: tf.Tensor, name: str, options: dict[str, Any]) -> tf.Tensor:
    """The sum of counts over the ranks, in the steps in which there are any."""
    return tf.cond(tf.size(counts) > 0, lambda: hvd.allreduce(counts, op=hvd.Sum, name=name, **options), lambda: counts)


def sum_twice(
    first: tf.Tensor,
    advance: Callable[..., Sequence[Array]],
    number: tf.Tensor,
    name: str,
    options: dict[str, Any],
) -> tf.Tensor:
    """The second sum of an exchange of two phases; `advance` makes its array of the first one's and `number`."""
    first = hvd.allreduce(first, op=hvd.Sum, name=f"{name}_first", **options)
    (second,) = call(advance, [first, number], ["float32"], in_order=False)
    return hvd.allreduce(second, op=hvd.Sum, name=f"{name}_second", **options)
