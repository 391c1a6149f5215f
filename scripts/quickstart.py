#!/usr/bin/env python
"""Train a language model dense and with top-k on two workers, and compare; see --help."""

import sys
from pathlib import Path

from hvd_compress.study.quickstart import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).with_name("train_lm.py")))
