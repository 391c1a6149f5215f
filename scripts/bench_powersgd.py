#!/usr/bin/env python
"""Measure PowerSGD on a square matrix beside PyTorch's own DDP hook, as a rank of a job."""

import sys

from hvd_compress.bench.square import main

if __name__ == "__main__":
    sys.exit(main())
