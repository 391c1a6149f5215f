"""A Keras model, of Keras 2 or 3, whose gradients are exactly its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.parallel.tf_ranks import SHAPES, gradients_of

SIZES = [int(np.prod(shape)) for shape in SHAPES]


def dot_model(keras: Any) -> Any:
    """Return a model with weights of `SHAPES`, all zero, that puts out the sum of weights times inputs."""
    import tensorflow as tf

    class Dot(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            if hasattr(self, "parts"):
                return
            self.parts = [
                self.add_weight(name=f"w{i}", shape=shape, initializer="zeros") for i, shape in enumerate(SHAPES)
            ]

        def call(self, inputs: Any) -> Any:
            pieces = tf.split(inputs, SIZES, axis=1)
            products = [
                tf.reduce_sum(tf.cast(piece, part.dtype) * tf.reshape(tf.convert_to_tensor(part), (1, -1)), axis=1)
                for piece, part in zip(pieces, self.parts, strict=True)
            ]
            return tf.add_n(products)[:, None]

    inputs = keras.Input((sum(SIZES),))
    return keras.Model(inputs, Dot()(inputs))


def mean_of_output(targets: Any, outputs: Any) -> Any:
    """The loss: its gradient with respect to a weight is the mean of the inputs that stand beside it."""
    import tensorflow as tf

    return tf.reduce_mean(tf.cast(outputs, tf.float32))


def batches(rank: int, begin: int, end: int) -> np.ndarray[Any, Any]:
    """Return inputs, one row a step, so that each step's gradients are `gradients_of` it."""
    return np.stack([np.concatenate([g.reshape(-1) for g in gradients_of(step, rank)]) for step in range(begin, end)])


def fit(model: Any, inputs: np.ndarray[Any, Any], **settings: Any) -> Any:
    """Train, one row a step."""
    targets = np.zeros((len(inputs), 1), np.float32)
    return model.fit(inputs, targets, batch_size=1, shuffle=False, verbose=0, **settings)
