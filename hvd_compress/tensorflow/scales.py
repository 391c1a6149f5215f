"""Where the loss scale is read."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["scale_tensor"]


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
