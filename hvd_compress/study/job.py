"""What every worker of a study runs: the trials of all cells with as many workers as there are, one after the other.

Starting torch takes seconds, so one job does many trials. Rank 0 has the schedule and tells the others what to train.
It writes what happens to standard output, one JSON object a line, for the program that started the job.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import horovod.torch as hvd

from hvd_compress.study.database import Database
from hvd_compress.study.errors import UsageError
from hvd_compress.study.options import Options, checksum
from hvd_compress.study.schedule import Assignment, Schedule
from hvd_compress.study.torch_models import Data
from hvd_compress.study.torch_trial import run_trial
from hvd_compress.study.workers import Workers, run_on_all_ranks

__all__ = ["main"]

WAIT_SECONDS = 5.0
"""Between two looks at what other machines do."""

BEAT_SECONDS = 20.0
SAY_SECONDS = 0.25


def main(argv: Sequence[str]) -> int:
    """Run this rank's part; returns the exit status.

    Parameters
    ----------
    argv : sequence of str
        The options as JSON, and the process that started the job.
    """
    options, starter = Options.from_json(argv[0]), int(argv[1])
    return run_on_all_ranks(lambda: _work(options, Workers(hvd), starter), hvd)


def _work(options: Options, workers: Workers, starter: int) -> None:
    data, schedule, error = None, None, None
    try:
        data = options.load_data()
        if workers.rank == 0:
            schedule = _schedule(options, data, workers.size)
    except UsageError as caught:
        error = str(caught)
    workers.agree(error)
    assert data is not None
    while assignment := workers.broadcast(schedule and schedule.next(), "assignment"):
        if assignment.cell is None:
            time.sleep(WAIT_SECONDS)
        else:
            _train(assignment, options, data, workers, _Witness(schedule, assignment, starter))


def _schedule(options: Options, data: Data, workers: int) -> Schedule:
    facts = {"data": checksum(data), **options.plan.facts()}
    return Schedule(options.cells(options.data_name(data), workers), options.plan, Database(options.storage), facts)


def _train(assignment: Assignment, options: Options, data: Data, workers: Workers, witness: _Witness) -> None:
    assert assignment.cell is not None
    record = run_trial(
        assignment.cell, assignment.place, assignment.parameters or {}, options.plan, data, workers, witness.step
    )
    if witness.running:
        witness.running.finish(record)
        witness.say("end", score=record.validation_score, seconds=record.seconds)


class _Witness:
    """Says how a trial goes, on rank 0; keeps the database informed; ends the job when nobody wants it any more."""

    def __init__(self, schedule: Schedule | None, assignment: Assignment, starter: int) -> None:
        self.running = schedule and schedule.running
        self._starter = starter
        self._beaten, self._said = time.monotonic(), 0.0
        if self.running and assignment.cell:
            place = assignment.place
            self.say("begin", cell=assignment.cell.name, place=list(place), parameters=self.running.parameters)

    def step(self, done: int, most: int, note: str) -> None:
        """Take what there is to say after a step."""
        now = time.monotonic()
        if not self.running:
            return
        if now - self._said > SAY_SECONDS:
            self._said = now
            self.say("step", done=done, most=most, note=note)
            self._end_if_abandoned()
        if now - self._beaten > BEAT_SECONDS:
            self._beaten = now
            self.running.beat()

    def say(self, event: str, **facts: Any) -> None:
        """Write a line."""
        print(json.dumps({"event": event, **facts}), flush=True)

    def _end_if_abandoned(self) -> None:
        """A job whose starter was killed outright would go on beside the one that resumes it."""
        launcher = os.getppid()
        status = Path(f"/proc/{launcher}/status").read_text(encoding="utf-8")
        if f"PPid:\t{self._starter}\n" not in status:
            os.kill(launcher, signal.SIGTERM)
            raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
