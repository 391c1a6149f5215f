"""How fast a step would be on links of other speeds: measured times and payloads, computed transfers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from hvd_compress.bench.estimate import Cost, Estimate, estimate
from hvd_compress.bench.link import Link, link_at
from hvd_compress.study.report.outcomes import Job, Outcome, Study, Subject

__all__ = ["SPEEDS", "Pace", "Projection", "projections", "wire_seconds"]

SPEEDS = (1e8, 1e9, 1e10, 2.5e10)
"""Of links, in bits per second."""
_EXTRAPOLATED = (8, 16)
"""Numbers of workers that are computed where they were not measured."""


def wire_seconds(outcome: Outcome, link: Link) -> float:
    """Time of a step's transfers: what is all-reduced, then what is gathered."""
    reduced = link.allreduce.seconds(outcome.sent_bytes - outcome.gathered_bytes)
    return reduced + (link.allgather.seconds(outcome.gathered_bytes) if outcome.gathered_bytes else 0.0)


@dataclass(frozen=True)
class Pace:
    """A step with one method and setting, beside the dense step; that is the first of all paces.

    Parameters
    ----------
    outcome : Outcome
    dense, own : Estimate
    """

    outcome: Outcome
    dense: Estimate
    own: Estimate

    @property
    def gain(self) -> float:
        """How many times faster the step is where the exchange begins when all gradients are there."""
        return self.dense.step / self.own.step

    @property
    def gain_overlapped(self) -> float:
        """The same where the network works all the while that gradients are computed."""
        return self.dense.step_overlapped / self.own.step_overlapped

    @property
    def gain_text(self) -> str:
        """Both, the smaller one first."""
        return "{:.2f} to {:.2f}".format(*sorted((self.gain, self.gain_overlapped)))


@dataclass(frozen=True)
class Projection:
    """A job on a network: as it was measured, or with more workers than that.

    Parameters
    ----------
    job : Job
        Where times and payloads were measured.
    workers : int
    compute : float
        Seconds of a step without encoding, exchanging and decoding.
    outcomes : tuple of Outcome
        Dense training first.
    """

    job: Job
    workers: int
    compute: float
    outcomes: tuple[Outcome, ...]

    @property
    def measured(self) -> bool:
        """Whether so many workers were measured."""
        return self.workers == self.job.workers

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.workers} workers" + ("" if self.measured else " (extrapolated)")

    @property
    def dense(self) -> Outcome:
        """Dense training."""
        return self.outcomes[0]

    def paces(self, bits_per_second: float) -> list[Pace]:
        """Estimates for links of one speed, in the order of `outcomes`."""
        link = link_at(bits_per_second / 8, self.workers)
        steps = estimate([self._cost(outcome, link) for outcome in self.outcomes], self.compute)
        return [Pace(outcome, steps[0], own) for outcome, own in zip(self.outcomes, steps, strict=True)]

    def break_even(self, outcome: Outcome) -> float:
        """Speed of the links, in bits per second, from which on dense is faster without overlap; 0: always is.

        Both times are a constant, and bytes divided by the speed. Infinite where the constant is no larger
        than that of dense.
        """

        def parts(of: Outcome) -> tuple[float, float]:
            fixed, slow = self._cost(of, link_at(math.inf, self.workers)), self._cost(of, link_at(1.0, self.workers))
            return fixed.exchange, slow.wire - fixed.wire

        (dense_fixed, dense_bytes), (fixed, wire_bytes) = parts(self.dense), parts(outcome)
        saved, lost = dense_bytes - wire_bytes, fixed - dense_fixed
        if saved <= 0:
            return 0.0
        return 8 * saved / lost if lost > 0 else math.inf

    def _cost(self, outcome: Outcome, link: Link) -> Cost:
        wire = wire_seconds(outcome, link)
        if outcome is self.dense:
            return Cost("dense", round(outcome.sent_bytes), 0.0, wire, 0.0)
        time = outcome.milliseconds
        # Every worker decodes what each of them has sent.
        payloads = self.workers / self.job.workers if outcome.gathered_bytes else 1
        return Cost(
            outcome.compression, round(outcome.sent_bytes), time.encode / 1e3, wire, payloads * time.decode / 1e3
        )


def projections(study: Study, subject: Subject) -> list[Projection]:
    """Projections of every measured number of workers above one, then of more workers than were measured."""
    jobs = [job for job in study.jobs(subject) if study.dense(job)]
    if not jobs:
        return []
    more = [(jobs[-1], workers) for workers in _EXTRAPOLATED if workers > jobs[-1].workers]
    counts = [(job, job.workers) for job in jobs if job.workers > 1] + more
    return [_projection(study, job, workers) for job, workers in counts]


def _projection(study: Study, job: Job, workers: int) -> Projection:
    outcomes = study.at(job)
    dense = study.dense(job)
    assert dense is not None
    # Computing is the same work under every method; the median keeps what else the machine did at the time out of it.
    compute = median(outcome.compute for outcome in outcomes) / 1e3
    return Projection(job, workers, compute, (dense, *(outcome for outcome in outcomes if outcome is not dense)))
