"""Gradient compression for ``horovod.tensorflow``: ``compression=Compression.topk(density=0.01)``."""

from hvd_compress.versions import require_horovod

require_horovod("tensorflow")

from hvd_compress.tensorflow.compression import Compression  # noqa: E402
from hvd_compress.tensorflow.compressor import Compressor  # noqa: E402
from hvd_compress.tensorflow.slices import merge_rows  # noqa: E402

__all__ = ["Compression", "Compressor", "merge_rows"]
