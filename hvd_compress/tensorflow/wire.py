"""In which dtype a tensor passes Horovod's allreduce."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import tensorflow as tf

from hvd_compress.codec import Codec, TensorSpec
from hvd_compress.generator import Site
from hvd_compress.ops import ops_for

__all__ = ["sum_dtype"]


def sum_dtype(codec: Codec, spec: TensorSpec) -> tf.DType:
    """Return the dtype of what a SUM codec sends: a graph must know it before there is a payload."""
    return tf.as_dtype(_of_payload(codec, spec.dtype))


@lru_cache(maxsize=256)
def _of_payload(codec: Codec, dtype: str) -> str:
    ops, spec = ops_for(np.zeros(1)), TensorSpec((1,), dtype)
    payload, _ = codec.encode(ops, ops.zeros(1, dtype), codec.init(ops, spec), Site("", 0))
    return ops.dtype(payload.parts[0])
