"""Join traces of HVD_COMPRESS_TIMELINE with the one of HOROVOD_TIMELINE, on the clock of the first.

Traces are in Chrome's format: what is printed opens in ui.perfetto.dev and in chrome://tracing.
"""

from __future__ import annotations

import argparse
import json
import sys

from hvd_compress.cli.tensors import CommandFailed
from hvd_compress.timeline import join

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``timeline``."""
    parser.add_argument("traces", nargs="+", metavar="FILE", help="Horovod's trace, and those of the ranks")
    parser.add_argument("--out", metavar="FILE", help="where to write the joined trace (default: standard output)")


def run(arguments: argparse.Namespace) -> int:
    """Write the joined trace."""
    try:
        text = json.dumps(join(arguments.traces))
        if arguments.out is None:
            sys.stdout.write(text + "\n")
        else:
            with open(arguments.out, "w", encoding="utf-8") as file:
                file.write(text + "\n")
    except (OSError, ValueError) as error:
        raise CommandFailed(str(error), 1) from error
    return 0
