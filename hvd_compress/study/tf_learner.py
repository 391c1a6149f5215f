"""The language model in Keras 3, on ``horovod.tensorflow``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvd_compress.keras import DistributedOptimizer
from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import Words
from hvd_compress.study.learner import Learned, Learner
from hvd_compress.study.tf_model import State, build_model
from hvd_compress.study.tf_waiting import Timed
from hvd_compress.tensorflow import Compression, Compressor


class TensorFlowLearner(Learner):
    """A :class:`Learner` in Keras 3."""

    horovod = hvd
    compressions = Compression
    suffix = "npz"

    def __init__(self, config: TrainConfig, vocabulary_size: int, compression: Any) -> None:
        self._compression = compression if isinstance(compression, Compressor) else Timed(compression)
        keras.utils.set_random_seed(config.seed)
        self._model = build_model(config.size, vocabulary_size, config.dropout, self.dropout_seed(config))
        # It clips what all ranks have combined, so that the norm that counts is equal on all of them.
        sgd = keras.optimizers.SGD(config.learning_rate, global_clipnorm=config.clip)
        self._optimizer = DistributedOptimizer(sgd, compression=self._compression)
        self._optimizer.build(self._model.trainable_variables)
        self._broadcast()
        shape = config.sequence_length + 1, config.batch_size // hvd.size()
        # Another shape would be an error, and not a second trace.
        self._step = tf.function(self._traced_step, input_signature=self._signature(*shape))
        self._evaluation = tf.function(self._traced_evaluation, input_signature=self._signature(None, None))

    def _signature(self, length: int | None, columns: int | None) -> list[Any]:
        state = tf.TensorSpec((columns, self._model.hidden_size), tf.float32)
        return [tf.TensorSpec((length, columns), tf.int64), [(state, state) for _ in self._model.lstms]]

    def _broadcast(self) -> None:
        variables = [*self._model.trainable_variables, *self._optimizer.variables]
        hvd.broadcast_variables([variable.value for variable in variables], root_rank=0)

    def parameters(self) -> list[NDArray[Any]]:
        return _arrays(self._model.trainable_variables)

    def initial_state(self, columns: int) -> State:
        return self._model.initial_state(columns)

    def learn(self, words: Words, learning_rate: float) -> Learned:
        self._optimizer.learning_rate = learning_rate
        loss, self.state, waited = self._step(tf.constant(words), self.state)
        if isinstance(self._compression, Timed):
            return Learned(float(loss), float(waited))
        counts = self._compression.stats().step
        return Learned(float(loss), counts.wait_seconds + counts.decode_seconds)

    def _losses(self, words: tf.Tensor, state: State, training: bool) -> tuple[tf.Tensor, State]:
        columns = tf.transpose(words)
        scores, state = self._model(columns[:, :-1], state, training=training)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(columns[:, 1:], scores), state

    def _traced_step(self, words: tf.Tensor, state: State) -> tuple[tf.Tensor, State, tf.Tensor]:
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            losses, state = self._losses(words, state, training=True)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, variables)
        timed = self._compression if isinstance(self._compression, Timed) else None
        if timed:
            timed.begin(gradients)
        self._optimizer.apply(gradients, variables)
        return loss, state, timed.seconds() if timed else 0.0

    def _traced_evaluation(self, words: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        losses, state = self._losses(words, state, training=False)
        return tf.reduce_sum(losses), state

    def cross_entropy(self, words: Words, state: State) -> tuple[float, State]:
        loss, state = self._evaluation(tf.constant(words), state)
        return float(loss), state

    def _saved_variables(self) -> dict[str, Sequence[Any]]:
        own = {"generators": self._model.non_trainable_variables}
        common = {"model": self._model.trainable_variables, "optimizer": self._optimizer.variables}
        return own | common if hvd.rank() == 0 else own

    def state_dict(self) -> dict[str, Any]:
        groups = self._saved_variables() | {"state": tf.nest.flatten(self.state)}
        arrays = {f"{name}/{i}": array for name, group in groups.items() for i, array in enumerate(_arrays(group))}
        if isinstance(self._compression, Compressor):
            arrays["compression"] = np.frombuffer(self._compression.serialize(), np.uint8)
        return {"arrays": arrays}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        arrays = saved["arrays"]
        for name, group in self._saved_variables().items():
            for i, variable in enumerate(group):
                variable.assign(arrays[f"{name}/{i}"])
        self._broadcast()
        if "compression" in arrays:
            self._compression.deserialize(arrays["compression"].tobytes())
        state = self.initial_state(1)
        flat = [tf.constant(arrays[f"state/{i}"]) for i in range(len(tf.nest.flatten(state)))]
        self.state = tf.nest.pack_sequence_as(state, flat)

    @staticmethod
    def write(saved: dict[str, Any], file: BinaryIO) -> None:
        rest = {name: value for name, value in saved.items() if name != "arrays"}
        np.savez(file, rest=np.array(json.dumps(rest)), **saved["arrays"])

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        return {**json.loads(str(arrays.pop("rest"))), "arrays": arrays}


def _arrays(values: Sequence[Any]) -> list[NDArray[Any]]:
    return [value.numpy() for value in values]
