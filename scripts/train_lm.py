#!/usr/bin/env python
"""Train the LSTM language model in PyTorch on one or more Horovod workers.

mpirun -np 2 python scripts/train_lm.py --compression "topk:density=0.01"
horovodrun -np 2 --gloo python scripts/train_lm.py --compression none
"""

import sys

from hvd_compress.study.command import run


def main() -> int:
    return run(__doc__, "torch")


if __name__ == "__main__":
    sys.exit(main())
