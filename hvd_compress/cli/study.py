"""Train models with every method, each tuned on its own, to find out what pays for them.

Every method, at each of its settings, has its own search of hyper-parameters, on real Horovod workers on this machine;
the best of them is trained again with several seeds. Everything is kept in a database: run the same command again to
go on with a study that was interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from hvd_compress.cli import study_report
from hvd_compress.cli.output import add_json_option, console, print_json
from hvd_compress.cli.tensors import CommandFailed
from hvd_compress.registry import split_configs

__all__ = ["add_arguments", "run"]

DATA = "HVD_COMPRESS_DATA"
DATABASE = "study.db"

WIDTH = 120
"""Columns of a table that is not on a terminal."""

TASKS = {
    "lm": ("Language models.", "a text file, one sentence a line (default: the King James Bible)", "perplexity"),
    "vision": (
        "Classifiers of pictures.",
        "a folder with MNIST's IDX files or CIFAR-10's batches (default: scikit-learn's digits)",
        "accuracy",
    ),
}
"""By name: what is trained, what it is trained on, and how it is scored."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands of ``study`` and their options."""
    commands = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for task, (text, data, _) in TASKS.items():
        add = commands.add_parser(task, help=text, description=text, allow_abbrev=False).add_argument
        add(
            "--preset",
            default="laptop",
            choices=("smoke", "laptop", "paper"),
            help="a few minutes, to see that it works; an hour or so on two cores; the studies' own grid "
            "(default: laptop)",
        )
        add(
            "--out",
            default=Path("results", "study", task),
            type=Path,
            metavar="DIR",
            help="folder for the database and what workers print (default: %(default)s)",
        )
        add("--storage", metavar="URL", help=f"an optuna storage, for several machines (default: DIR/{DATABASE})")
        add("--data", metavar="PATH", help=f"{data}; {DATA} does the same")
        for option, kind, meaning in (("workers", _numbers, "such as 1,2,4"), ("models", _words, "with commas")):
            add(f"--{option}", type=kind, metavar="LIST", help=f"{meaning} (default: the preset's)")
        add(
            "--methods",
            nargs="+",
            type=split_configs,
            metavar="METHOD",
            help="some of the preset's, and codecs, such as none topk powersgd:rank=2 onebit, with commas or spaces "
            "between them; codecs are trained where the preset's first methods are (default: the preset's)",
        )
        add("--trials", type=int, metavar="N", help="draws of each search (default: the preset's)")
        add("--seeds", type=int, metavar="N", help="final trials with the best draw (default: the preset's)")
        add_json_option(commands.choices[task])
    text = (study_report.__doc__ or "").strip()
    report = commands.add_parser("report", help=text.partition("\n")[0], description=text, allow_abbrev=False)
    study_report.add_arguments(report)


def run(arguments: argparse.Namespace) -> int:
    """Train, and show the results; or make a report of what was trained."""
    if arguments.task == "report":
        return study_report.run(arguments)
    try:
        # Imported here because it takes long, and needs the extra "study".
        from hvd_compress.study.study_table import table_of

        rows = _trained(arguments)
    except ModuleNotFoundError as error:
        raise CommandFailed(f"studies need {error.name}: pip install 'hvd_compress[study]'") from error
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    if arguments.json:
        print_json(rows)
        return 0
    # Lines of a table in a file are not to be broken at 80 characters.
    shown = console() if sys.stdout.isatty() else console(width=WIDTH)
    shown.print(table_of(rows, TASKS[arguments.task][2]))
    storage = arguments.storage or arguments.out / DATABASE
    shown.print(
        f"Pictures: python -m hvd_compress study report --storage {storage} --out {arguments.out}", soft_wrap=True
    )
    return 0


def _trained(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from hvd_compress.launch import LaunchError
    from hvd_compress.study.database import sqlite_url
    from hvd_compress.study.driver import StudyFailed, run_study
    from hvd_compress.study.errors import UsageError
    from hvd_compress.study.options import Options
    from hvd_compress.study.study_table import rows_of

    names = ("workers", "models", "trials", "seeds")
    methods = arguments.methods and tuple(itertools.chain.from_iterable(arguments.methods))
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        options = Options(
            arguments.task,
            arguments.preset,
            arguments.storage or sqlite_url(arguments.out / DATABASE),
            arguments.data or os.environ.get(DATA),
            methods=methods,
            **{name: getattr(arguments, name) for name in names},
        )
        return rows_of(run_study(options, arguments.out))
    except OSError as error:
        raise CommandFailed(f"cannot write into {arguments.out}: {error.strerror}; choose another --out", 2) from error
    except UsageError as error:
        raise CommandFailed(str(error), 2) from error
    except (StudyFailed, LaunchError) as error:
        raise CommandFailed(str(error)) from error


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))
