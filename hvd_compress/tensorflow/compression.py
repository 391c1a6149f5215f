"""``Compression``: every codec as a factory of compressors."""

from __future__ import annotations

import horovod.tensorflow as hvd

from hvd_compress.factories import with_factories
from hvd_compress.tensorflow.compressor import Compressor

__all__ = ["Compression"]


@with_factories(Compressor, own=("loss_scale",))
class Compression(hvd.Compression):  # type: ignore[misc]
    """Horovod's ``Compression`` with a method for each registered codec, and ``from_config``.

    `none` and `fp16` are Horovod's own. The others take the codec's parameters and

    error_feedback : bool
        Add what was not sent to the next gradient. Default: as the codec was published.
    min_elements, min_ndim : int
        The smallest tensors to compress (1024 entries, 2 dimensions); others go dense.
    loss_scale
        See :class:`Compressor`.

    ``python -m hvd_compress list`` shows codecs and parameters.
    """
