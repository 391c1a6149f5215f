"""One module for each algorithm; importing this package registers them."""

from hvd_compress.codecs.cast import Cast
from hvd_compress.codecs.none import Dense
from hvd_compress.codecs.randomk import RandomK
from hvd_compress.codecs.topk import TopK

__all__ = ["Cast", "Dense", "RandomK", "TopK"]
