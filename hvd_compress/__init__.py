"""Real gradient compression for unmodified Horovod.

The core needs NumPy only. ``hvd_compress.torch`` holds what goes into ``horovod.torch``, ``hvd_compress.codecs`` all
codecs, of which those that most programs use are here, too.
"""

from hvd_compress.codec import Codec, CompressionError, Reduction
from hvd_compress.codecs import DGC, QSGD, Cast, Dense, DenseMomentum, JointSQ, RandomK, TopK, TopKQSGD
from hvd_compress.feedback import ErrorFeedback
from hvd_compress.generator import Site
from hvd_compress.ops import ops_for
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.policy import BySize, compose
from hvd_compress.registry import codec_from_config, codec_names, config_of

__version__ = "0.1.0"

__all__ = [
    "DGC",
    "QSGD",
    "BySize",
    "Cast",
    "Codec",
    "CompressionError",
    "Dense",
    "DenseMomentum",
    "ErrorFeedback",
    "JointSQ",
    "Payload",
    "RandomK",
    "Reduction",
    "Site",
    "TensorSpec",
    "TopK",
    "TopKQSGD",
    "__version__",
    "codec_from_config",
    "codec_names",
    "compose",
    "config_of",
    "ops_for",
]
