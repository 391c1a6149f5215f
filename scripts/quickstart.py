#!/usr/bin/env python
"""Train a language model on two workers, dense and compressed, and compare; see --help."""

import sys
from pathlib import Path

from hvd_compress.study.quickstart import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent))
