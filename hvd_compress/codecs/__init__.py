"""One module for each algorithm; importing this package registers them."""

from hvd_compress.codecs.adaq import AdaQ as AdaQ
from hvd_compress.codecs.arctopk import ARCTopK as ARCTopK
from hvd_compress.codecs.cast import Cast as Cast
from hvd_compress.codecs.dense_sign import DenseSign as DenseSign
from hvd_compress.codecs.dgc import DGC as DGC
from hvd_compress.codecs.efsignsgd import EFSignSGD as EFSignSGD
from hvd_compress.codecs.int8 import Int8 as Int8
from hvd_compress.codecs.jointsq import JointSQ as JointSQ
from hvd_compress.codecs.momentum import DenseMomentum as DenseMomentum
from hvd_compress.codecs.natural import Natural as Natural
from hvd_compress.codecs.none import Dense as Dense
from hvd_compress.codecs.onebit import OneBit as OneBit
from hvd_compress.codecs.powersgd import PowerSGD as PowerSGD
from hvd_compress.codecs.powersgd_alternating import AlternatingPowerSGD as AlternatingPowerSGD
from hvd_compress.codecs.qsgd import QSGD as QSGD
from hvd_compress.codecs.randomk import RandomK as RandomK
from hvd_compress.codecs.scalecom import ScaleCom as ScaleCom
from hvd_compress.codecs.sidco import SIDCo as SIDCo
from hvd_compress.codecs.signsgd import SignSGD as SignSGD
from hvd_compress.codecs.terngrad import TernGrad as TernGrad
from hvd_compress.codecs.threshold import Threshold as Threshold
from hvd_compress.codecs.topk import TopK as TopK
from hvd_compress.codecs.topk_qsgd import TopKQSGD as TopKQSGD
