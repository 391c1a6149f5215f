"""Callbacks for Keras 3 on Horovod."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

__all__ = ["BroadcastGlobalVariables", "MetricAverage"]


class BroadcastGlobalVariables(keras.callbacks.Callback):  # type: ignore[misc]
    """Start all ranks from the weights and the optimizer's state of one, before the first batch.

    It also turns XLA off, which Keras turns on by itself where there is a GPU and which cannot hold Horovod's
    collectives.

    Parameters
    ----------
    root_rank : int
        The rank to start from.
    process_set : horovod.tensorflow.ProcessSet
        The ranks that train together.
    """

    def __init__(self, root_rank: int = 0, process_set: Any = hvd.global_process_set) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._process_set = process_set
        self._done = False

    def set_model(self, model: Any) -> None:
        """Turn XLA off, before the model makes its functions."""
        super().set_model(model)
        if getattr(model, "jit_compile", False):
            model.jit_compile = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Broadcast, once."""
        if self._done:
            return
        self._done = True
        variables = [*self.model.variables, *self.model.optimizer.variables]
        values = [variable.value for variable in variables]
        hvd.broadcast_variables(values, self._root_rank, process_set=self._process_set)


class MetricAverage(keras.callbacks.Callback):  # type: ignore[misc]
    """Average the metrics of an epoch over all ranks. Put it before callbacks that look at them.

    Parameters
    ----------
    process_set : horovod.tensorflow.ProcessSet
        The ranks that train together.
    """

    def __init__(self, process_set: Any = hvd.global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace the metrics by their averages."""
        if not logs:
            return
        names = sorted(logs)
        values = tf.constant([float(logs[name]) for name in names], tf.float64)
        averages = hvd.allreduce(values, op=hvd.Average, process_set=self._process_set, name="hvd_compress_metrics")
        logs.update(zip(names, averages.numpy().tolist(), strict=True))
