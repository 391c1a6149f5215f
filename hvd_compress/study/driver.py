"""Runs a study on this machine: a job for each number of workers, watched and shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hvd_compress.launch import started_workers
from hvd_compress.study.cells import FINAL, SEARCH
from hvd_compress.study.database import Database
from hvd_compress.study.options import Options, checksum
from hvd_compress.study.records import Record
from hvd_compress.study.schedule import is_done
from hvd_compress.study.study_progress import Reporter, reporting

__all__ = ["StudyFailed", "run_study"]

LAST_LINES = 20
"""Of what the workers printed, where they failed."""


class StudyFailed(RuntimeError):
    """A job did not end well; the text says which and what its workers said."""


def run_study(options: Options, out: Path) -> list[Record]:
    """Train what is still to be trained, and return the records of all trials, in the order of the cells.

    Parameters
    ----------
    options : Options
    out : Path
        Folder for what the workers print.

    Raises
    ------
    UsageError
        The data cannot be read, or the database does not fit them.
    StudyFailed
        A job failed. What had ended by then is in the database.
    """
    data = options.load_data()
    database, facts = Database(options.storage), {"data": checksum(data), **options.plan.facts()}
    name = options.data_name(data)
    cells = {workers: options.cells(name, workers) for workers in options.worker_counts()}
    trials = {cell: database.trials(cell, facts) for of in cells.values() for cell in of}
    looks = {phase: options.plan.looks_of(phase) for phase in (SEARCH, FINAL)}
    places = options.plan.places()
    each = sum(looks[place.phase] for place in places)
    done = sum(
        looks[place.phase] for of in trials.values() for place in of.finished() if place in options.plan.places()
    )
    with reporting(looks, each * len(trials), done) as reporter:
        for workers, of in cells.items():
            if not all(is_done(cell, options.plan, trials[cell]) for cell in of):
                _run_job(options, workers, out / f"workers-{workers}.log", reporter)
    ended = [of.finished() for of in trials.values()]
    return [of[place] for of in ended for place in places if place in of]


def _run_job(options: Options, workers: int, log: Path, reporter: Reporter) -> None:
    command = [sys.executable, "-m", "hvd_compress.study.job", options.as_json(), str(os.getpid())]
    # With one worker stock Horovod calls a compressor only in an elastic job.
    env = {"HOROVOD_ELASTIC": "1"} if workers == 1 else {}
    with (
        log.open("wb") as errors,
        started_workers(command, workers=workers, env=env, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b'{"event"'):
                reporter.take(json.loads(line))
        status = process.wait()
    if status:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        raise StudyFailed(
            f"the job with {workers} workers ended with status {status}; {log} ends with\n" + "\n".join(last)
        )
