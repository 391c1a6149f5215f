"""``python -m hvd_compress``."""

import sys

from hvd_compress.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
