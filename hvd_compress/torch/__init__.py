"""Gradient compression for ``horovod.torch``: ``compression=Compression.topk(density=0.01)``."""

import warnings

try:
    import horovod
    import horovod.torch
except ImportError as error:
    raise ImportError(
        f"hvd_compress.torch needs Horovod built for torch ({error}); pip cannot build it: run scripts/setup.sh of "
        "hvd_compress"
    ) from error

if not horovod.__version__.startswith("0.28."):
    warnings.warn(f"hvd_compress is tested with Horovod 0.28.1; this is Horovod {horovod.__version__}", stacklevel=2)

from hvd_compress.torch.compression import Compression
from hvd_compress.torch.compressor import Compressor

__all__ = ["Compression", "Compressor"]
