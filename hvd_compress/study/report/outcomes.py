"""The records of a study, sorted: one outcome for each method and setting on a model and a number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import NamedTuple

from hvd_compress.study.records import Record
from hvd_compress.study.report.methods import density_of, label_of, rank_of
from hvd_compress.study.report.scores import SCORES, Score, Spread, spread_of
from hvd_compress.study.results import StepTime

__all__ = ["Job", "Outcome", "Study", "Subject", "study_of"]


class Subject(NamedTuple):
    """What is trained."""

    task: str
    model: str
    data: str

    @property
    def score(self) -> Score:
        """What it is judged by."""
        return SCORES[self.task]


class Job(NamedTuple):
    """What is trained, and by how many workers; methods are compared within a job."""

    subject: Subject
    workers: int

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.subject.model}, {self.workers} worker{'s' * (self.workers > 1)}"


@dataclass(frozen=True)
class Outcome:
    """The trials of one method and setting on one job.

    Parameters
    ----------
    job : Job
    method, setting : str
        As in `Record`.
    searched, finals : tuple of Record
        Trials with drawn hyper-parameters; trials with the best of them, one for each seed.
    """

    job: Job
    method: str
    setting: str
    searched: tuple[Record, ...]
    finals: tuple[Record, ...]

    @property
    def label(self) -> str:
        """Method and setting."""
        return f"{label_of(self.method)} {self.setting}".strip()

    @cached_property
    def runs(self) -> tuple[Record, ...]:
        """What stands for the outcome: the final runs; while there are none, the best of the search."""
        return self.finals or self.best_searched(1)

    def best_searched(self, count: int) -> tuple[Record, ...]:
        """So many trials of the search with the best validation scores, diverged ones last."""
        harm = self.job.subject.score.harm
        return tuple(sorted(self.searched, key=lambda trial: harm(trial.validation_score, 1.0))[:count])

    def top_quarter(self) -> tuple[Record, ...]:
        """The best quarter of the search, at least one trial; none that diverged."""
        best = self.best_searched(math.ceil(len(self.searched) / 4))
        return tuple(trial for trial in best if math.isfinite(trial.validation_score))

    @cached_property
    def spread(self) -> Spread:
        """Test scores over the seeds."""
        return spread_of(run.test_score for run in self.runs)

    @property
    def compression(self) -> str:
        """Config string of the compressor."""
        return self.runs[0].compression

    def parameter(self, name: str) -> float:
        """A hyper-parameter of the runs, their median; NaN where they have none of that name."""
        return median(run.parameters.get(name, math.nan) for run in self.runs)

    @property
    def density(self) -> float | None:
        """Fraction of entries sent, where the method has one."""
        return density_of(self.compression)

    @property
    def dense_bytes(self) -> float:
        """Of a step: all gradients uncompressed."""
        return 4 * self.runs[0].model_size

    @cached_property
    def sent_bytes(self) -> float:
        """Of a step and worker; for dense training on one worker, which sends nothing, all gradients."""
        return fmean(run.traffic.sent_bytes for run in self.runs) or self.dense_bytes

    @cached_property
    def gathered_bytes(self) -> float:
        """The part of `sent_bytes` that every other worker receives as it is."""
        return fmean(run.traffic.gathered_bytes for run in self.runs)

    @cached_property
    def compressed_bytes(self) -> float:
        """Of a step and worker: what was sent in place of those gradients that were compressed."""
        return fmean(run.traffic.compressed_sent_bytes for run in self.runs)

    @property
    def ratio(self) -> float:
        """Dense bytes over sent bytes, all gradients."""
        return self.dense_bytes / self.sent_bytes

    @cached_property
    def compressed_ratio(self) -> float:
        """Dense bytes over sent bytes of the compressed gradients; 1 where none was compressed."""
        return median(run.traffic.compressed_ratio for run in self.runs)

    @cached_property
    def milliseconds(self) -> StepTime:
        """Medians over the runs."""
        times = [run.milliseconds for run in self.runs]
        return StepTime(*(median(getattr(time, part) for time in times) for part in StepTime.__dataclass_fields__))

    @cached_property
    def compute(self) -> float:
        """Milliseconds of a step without encoding, exchanging and decoding."""
        time = self.milliseconds
        return max(0.0, time.step - time.encode - time.wait - time.decode)


@dataclass(frozen=True)
class Study:
    """All outcomes, by job, method and compression ratio."""

    outcomes: tuple[Outcome, ...]

    def subjects(self, task: str | None = None) -> list[Subject]:
        """What was trained, of one task or of all."""
        found = dict.fromkeys(outcome.job.subject for outcome in self.outcomes)
        return [subject for subject in found if task in (None, subject.task)]

    def jobs(self, subject: Subject | None = None) -> list[Job]:
        """Jobs of one subject, by the number of workers, or of all."""
        found = dict.fromkeys(outcome.job for outcome in self.outcomes)
        return [job for job in found if subject in (None, job.subject)]

    def at(self, job: Job) -> list[Outcome]:
        """Outcomes of a job."""
        return [outcome for outcome in self.outcomes if outcome.job == job]

    def dense(self, job: Job) -> Outcome | None:
        """Dense training on a job, if there was any and it did not diverge with every seed."""
        return next((outcome for outcome in self.at(job) if outcome.method == "none" and outcome.spread.values), None)

    def find(self, job: Job, method: str) -> list[Outcome]:
        """Outcomes of one method on a job."""
        return [outcome for outcome in self.at(job) if outcome.method == method]

    def name(self, subject: Subject) -> str:
        """Model, and the data where the model was trained on several."""
        several = sum(other[:2] == subject[:2] for other in self.subjects()) > 1
        return f"{subject.model} on {subject.data}" if several else subject.model


def study_of(records: Iterable[Record]) -> Study:
    """Sort records into outcomes, their runs by seed."""
    sorted_in: dict[tuple[Job, str, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        job = Job(Subject(record.task, record.model, record.data), record.workers)
        sorted_in.setdefault((job, record.method, record.setting), []).append(record)
    outcomes = [
        Outcome(*key, *(tuple(trial for trial in trials if trial.phase == phase) for phase in ("search", "final")))
        for key, trials in sorted_in.items()
    ]
    return Study(tuple(sorted(outcomes, key=lambda outcome: (outcome.job, rank_of(outcome.method), outcome.ratio))))
