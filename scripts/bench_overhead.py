#!/usr/bin/env python
"""Measure what the compressor itself costs beside Horovod's collectives, with a codec that sends nothing."""

import sys

from hvd_compress.bench.overhead import main

if __name__ == "__main__":
    sys.exit(main())
