#!/usr/bin/env python
"""Train the LSTM language model on one or more Horovod workers.

mpirun -np 2 python scripts/train_lm.py --compression "topk:density=0.01"
horovodrun -np 2 --gloo python scripts/train_lm.py --compression none
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.errors import UsageError


class Parser(argparse.ArgumentParser):
    """A parser whose errors can be agreed on by all ranks before one of them speaks."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    default = TrainConfig()
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def add(name: str, kind: Any, text: str, **more: Any) -> None:
        value = getattr(default, name)
        shown = "" if value is None else " (default: %(default)s)"
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=value, help=text + shown, **more)

    add("compression", str, 'compressor, such as "topk:density=0.01", fp16 or none', metavar="CONFIG")
    add("size", str, "of the model: small, medium or large")
    add("data", Path, "text file, one sentence a line (default: the King James Bible)", metavar="FILE")
    add("steps", int, "optimizer steps", metavar="N")
    add("batch_size", int, "columns of text in a step, all workers together", metavar="N")
    add("sequence_length", int, "words of a column in a step", metavar="N")
    add("learning_rate", float, "of plain SGD", metavar="X")
    add("clip", float, "largest norm of the averaged gradient", metavar="X")
    add("decay", float, "share of the steps, at the end, in which the learning rate falls to zero", metavar="X")
    add("dropout", float, "share of units left out", metavar="X")
    add("seed", int, "of parameters and dropout", metavar="N")
    add("evaluate_every", int, "steps between two looks at the validation perplexity", metavar="N")
    add("out", Path, "folder for result.json", metavar="DIR")
    add("checkpoint", Path, "folder for checkpoints, written at intervals and at the end", metavar="DIR")
    add("checkpoint_every", int, "steps between two checkpoints", metavar="N")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --checkpoint DIR")
    return parser


def main() -> int:
    arguments = parser()
    if {"-h", "--help"} & set(sys.argv[1:]):
        arguments.parse_args()
    try:
        from hvd_compress.study.training import train
        from hvd_compress.study.workers import run_on_all_ranks
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed; run scripts/setup.sh", file=sys.stderr)
        return 1
    return run_on_all_ranks(lambda: train(TrainConfig(**vars(arguments.parse_args()))))


if __name__ == "__main__":
    sys.exit(main())
