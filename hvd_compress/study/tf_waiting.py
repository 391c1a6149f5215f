"""How long a step of TensorFlow's waits for gradients that Horovod's own compressions exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horovod.tensorflow.compression import Compressor


class Timed(Compressor):  # type: ignore[misc]
    """One of Horovod's own compressions, which do not measure, for a function that is traced once.

    Parameters
    ----------
    own : type
        ``Compression.none`` or ``Compression.fp16``.
    """

    def __init__(self, own: Any) -> None:
        self._own = own
        self._times: list[tf.Tensor] = []

    def begin(self, gradients: Sequence[tf.Tensor]) -> None:
        """Note when all gradients of this rank are there."""
        self._note(gradients)

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """As the other does."""
        return self._own.compress(tensor)  # type: ignore[no-any-return]

    def decompress(self, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """As the other does; notes the time."""
        result = self._own.decompress(tensor, ctx)
        self._note([result])
        return result

    def seconds(self) -> tf.Tensor:
        """Time from then until all were combined; 0 where there is nobody to combine them with."""
        return tf.reduce_max(self._times) - self._times[0]

    def _note(self, tensors: Sequence[tf.Tensor]) -> None:
        with tf.control_dependencies(tensors):
            self._times.append(tf.timestamp())
