"""Show what a study has found: a page with tables and pictures, from its database alone.

The page is one file that needs nothing beside it; the pictures are there as PNG files too.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_compress.cli.output import add_json_option, console, print_json
from hvd_compress.cli.tensors import CommandFailed

if TYPE_CHECKING:
    from hvd_compress.study.report.advice import Recommendation
    from hvd_compress.study.report.outcomes import Study

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``study report``."""
    parser.add_argument(
        "--storage",
        required=True,
        nargs="+",
        metavar="DB",
        help="databases of studies: SQLite files, such as out/study.db, or URLs of optuna storages",
    )
    parser.add_argument("--preset", help="whose trials to show, where there are several")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="folder for report.html and the pictures"
    )
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the report, and print its short form."""
    try:
        from hvd_compress.study.report.facts import facts
        from hvd_compress.study.report.page import write_report

        study = _read(arguments)
    except ModuleNotFoundError as error:
        raise CommandFailed(f"reports need {error.name}: pip install 'hvd_compress[study]'") from error
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        paths = write_report(study, arguments.out)
    except OSError as error:
        raise CommandFailed(f"--out: cannot write into {arguments.out}: {error.strerror}", status=2) from error
    if arguments.json:
        print_json({**facts(study), "files": [str(path) for path in paths]})
        return 0
    _print_short(study)
    console().print(f"Page: {paths[0]} ({len(paths) - 1} pictures beside it)", soft_wrap=True)
    return 0


def _read(arguments: argparse.Namespace) -> Study:
    from optuna import get_all_study_names

    from hvd_compress.study.database import load_records, sqlite_url
    from hvd_compress.study.errors import UsageError
    from hvd_compress.study.report.outcomes import study_of

    urls = [text if "://" in text else sqlite_url(Path(text)) for text in arguments.storage]
    try:
        records = [record for url in urls for record in load_records(url, arguments.preset)]
    except UsageError as error:
        raise CommandFailed(f"--storage: {error}", status=2) from error
    presets = sorted({name.partition("/")[0] for url in urls for name in get_all_study_names(url)})
    if arguments.preset is None and len(presets) > 1:
        raise CommandFailed(f"--preset: must be one of {', '.join(presets)}, which are all there", status=2)
    if not records:
        of_preset = f" of the preset {arguments.preset}" if arguments.preset else ""
        raise CommandFailed(f"there is no trial{of_preset} that has ended in {', '.join(arguments.storage)}")
    return study_of(records)


def _print_short(study: Study) -> None:
    from rich.table import Table

    from hvd_compress.bench.exchange_report import speed_text
    from hvd_compress.study.report.advice import recommendations
    from hvd_compress.study.report.contents import claims
    from hvd_compress.study.report.speed import SPEEDS

    advice = Table("model", "workers", *map(speed_text, SPEEDS), box=None, pad_edge=False)
    for subject in study.subjects():
        rows = [row for row in recommendations(study, subject) if row.projection.measured]
        for job, of_job in groupby(rows, key=lambda row: row.projection.job):
            advice.add_row(study.name(subject), str(job.workers), *map(_in_short, of_job))
    expected = Table("what the papers lead one to expect", "verdict", box=None, pad_edge=False)
    for claim in claims(study):
        expected.add_row(claim.statement, claim.verdict)
    console().print(
        "Which method for which link, and how many times as fast as dense; -: do not compress; *: only where computing "
        "hides no exchange"
    )
    for table in (advice, expected):
        console().print(table)
        console().print()


def _in_short(row: Recommendation) -> str:
    if not row.compresses:
        return "-"
    return f"{row.pace.outcome.label}: {row.pace.gain_text}{'' if row.surely_compresses else ' *'}"
