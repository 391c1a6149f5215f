#!/usr/bin/env python
"""Measure how long Horovod takes to exchange a gradient, dense and compressed, on links of several speeds."""

import sys
from pathlib import Path

from hvd_compress.bench.exchange_command import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent))
