"""Horovod for Keras 3, with or without compression.

Horovod 0.28.1 by itself wraps an optimizer of Keras 3, trains, and reduces nothing. Here are an optimizer and callbacks
that do, on Horovod's public collectives.
"""

from hvd_compress.keras._keras import require_keras_3

require_keras_3()

from hvd_compress.keras.backup import BackupAndRestore  # noqa: E402
from hvd_compress.keras.callbacks import BroadcastGlobalVariables, MetricAverage  # noqa: E402
from hvd_compress.keras.optimizer import DistributedOptimizer  # noqa: E402
from hvd_compress.tensorflow import Compression  # noqa: E402

__all__ = ["BackupAndRestore", "BroadcastGlobalVariables", "Compression", "DistributedOptimizer", "MetricAverage"]
