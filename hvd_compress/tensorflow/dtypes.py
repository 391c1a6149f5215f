"""What a graph must know before it runs: the dtype of what is summed, and where the loss scale is read."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_compress.codec import Codec
from hvd_compress.generator import Site
from hvd_compress.ops import ops_for
from hvd_compress.payload import TensorSpec

__all__ = ["scale_tensor", "sum_dtype"]


def sum_dtype(codec: Codec, spec: TensorSpec) -> tf.DType:
    """Return the dtype of what a SUM codec sends: a graph must know it before there is a payload."""
    return tf.as_dtype(_of_payload(codec, spec.dtype))


@lru_cache(maxsize=256)
def _of_payload(codec: Codec, dtype: str) -> str:
    ops, spec = ops_for(np.zeros(1)), TensorSpec((1,), dtype)
    payload, _ = codec.encode(ops, ops.zeros(1, dtype), codec.init(ops, spec), Site("", 0))
    return ops.dtype(payload.parts[0])


def scale_tensor(source: Any) -> tf.Tensor:
    """Return the current loss scale as a float32 tensor of the graph that is being built; 1 without a source."""
    if source is None:
        return tf.constant(1.0)
    # Keras 2 has a property of that name, Keras 3 a variable of the other.
    for name in ("loss_scale", "dynamic_scale"):
        if hasattr(source, name):
            source = getattr(source, name)
            break
    value = source() if callable(source) else source
    return tf.cast(getattr(value, "value", value) if not tf.is_tensor(value) else value, tf.float32)
