"""The command line of the training scripts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.errors import UsageError
from hvd_compress.study.frameworks import Framework, learner_of
from hvd_compress.study.workers import run_on_all_ranks


class Parser(argparse.ArgumentParser):
    """A parser whose errors can be agreed on by all ranks before one of them speaks."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError."""
        raise UsageError(f"{message}; see {self.prog} --help")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments of a training script, with the names and defaults of :class:`TrainConfig`."""
    default = TrainConfig()
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

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


def run(description: str | None, framework: Framework) -> int:
    """Train on this rank as its command line says; returns the exit status.

    Parameters
    ----------
    description : str
        What ``--help`` says first.
    framework : str
        ``"torch"`` or ``"tensorflow"``; no other is imported.
    """
    arguments = parser(description)
    if {"-h", "--help"} & set(sys.argv[1:]):
        arguments.parse_args()
    try:
        from hvd_compress.study.training import train

        kind = learner_of(framework)
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed; run scripts/setup.sh", file=sys.stderr)
        return 1
    return run_on_all_ranks(lambda: train(TrainConfig(**vars(arguments.parse_args())), kind), kind.horovod)
