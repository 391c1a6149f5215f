"""Gradient compression for ``horovod.torch``: ``compression=Compression.topk(density=0.01)``."""

from hvd_compress.versions import require_horovod

require_horovod("torch")

from hvd_compress.torch.compression import Compression  # noqa: E402
from hvd_compress.torch.compressor import Compressor  # noqa: E402
from hvd_compress.torch.elastic import register  # noqa: E402
from hvd_compress.torch.sgd import DGCSGD  # noqa: E402

register()

__all__ = ["DGCSGD", "Compression", "Compressor"]
