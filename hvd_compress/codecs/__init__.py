"""One module for each algorithm; importing this package registers them."""

from hvd_compress.codecs.cast import Cast
from hvd_compress.codecs.dgc import DGC
from hvd_compress.codecs.jointsq import JointSQ
from hvd_compress.codecs.momentum import DenseMomentum
from hvd_compress.codecs.none import Dense
from hvd_compress.codecs.qsgd import QSGD
from hvd_compress.codecs.randomk import RandomK
from hvd_compress.codecs.topk import TopK
from hvd_compress.codecs.topk_qsgd import TopKQSGD

__all__ = ["DGC", "QSGD", "Cast", "Dense", "DenseMomentum", "JointSQ", "RandomK", "TopK", "TopKQSGD"]
