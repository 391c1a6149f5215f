#!/usr/bin/env python
"""Train the LSTM language model in Keras 3 on one or more Horovod workers.

mpirun -np 2 python scripts/train_lm_tf.py --compression "topk:density=0.01"
horovodrun -np 2 --gloo python scripts/train_lm_tf.py --compression none
"""

import sys

from hvd_compress.study.command import run


def main() -> int:
    return run(__doc__, "tensorflow")


if __name__ == "__main__":
    sys.exit(main())
