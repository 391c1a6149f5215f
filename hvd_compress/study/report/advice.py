"""Which method pays, for a model and a link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvd_compress.bench.bench_report import digits
from hvd_compress.bench.exchange_report import speed_text
from hvd_compress.study.report.outcomes import Outcome, Study, Subject
from hvd_compress.study.report.speed import SPEEDS, Pace, Projection, projections
from hvd_compress.study.report.tables import Table, change_text, filled

__all__ = ["LEAST_GAIN", "TOLERANCE", "Recommendation", "acceptable", "recommendations", "table"]

TOLERANCE = 0.01
"""A model may be worse by so much: a share of the perplexity, or a difference of accuracies."""
LEAST_GAIN = 1.05
"""Estimates are not exact enough for a smaller gain to be worth a change."""


def acceptable(outcome: Outcome, dense: Outcome) -> bool:
    """Whether a method's model is about as good as the dense one, whatever the seed."""
    harm = outcome.job.subject.score.harm(outcome.spread.mean, dense.spread.mean)
    return outcome is dense or (harm <= TOLERANCE and not outcome.spread.diverged)


@dataclass(frozen=True)
class Recommendation:
    """What to use for a job on links of one speed.

    Parameters
    ----------
    projection : Projection
    bits_per_second : float
    pace : Pace
        The fastest of what is acceptable, which may be dense training.
    """

    projection: Projection
    bits_per_second: float
    pace: Pace

    @property
    def compresses(self) -> bool:
        """Whether the gain is large enough to be worth a change."""
        return self.pace.gain >= LEAST_GAIN

    @property
    def surely_compresses(self) -> bool:
        """Whether it is, too, on a network that works all the while that gradients are computed."""
        return self.pace.gain_overlapped >= LEAST_GAIN

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.compresses:
            return "compress" if self.surely_compresses else "compress if computing hides no exchange"
        others = (outcome for outcome in self.projection.outcomes[1:] if acceptable(outcome, self.projection.dense))
        return f"do not compress: {'too little gain' if any(others) else 'no method with as good a score'}"


def recommendations(study: Study, subject: Subject) -> list[Recommendation]:
    """For each number of workers and each speed."""
    return [_recommend(projection, speed) for projection in projections(study, subject) for speed in SPEEDS]


def _recommend(projection: Projection, bits_per_second: float) -> Recommendation:
    paces = [pace for pace in projection.paces(bits_per_second) if acceptable(pace.outcome, projection.dense)]
    return Recommendation(projection, bits_per_second, max(paces, key=lambda pace: pace.gain))


def table(study: Study) -> Table:
    """All recommendations."""

    def if_any(text: Callable[[Recommendation], str]) -> Callable[[Recommendation], str]:
        return lambda row: text(row) if row.compresses else ""

    columns: dict[str, Callable[[Recommendation], str]] = {
        "model": lambda row: study.name(row.projection.job.subject),
        "workers": lambda row: row.projection.label.replace(" workers", ""),
        "link": lambda row: speed_text(row.bits_per_second),
        "recommendation": lambda row: row.verdict,
        "method": if_any(lambda row: row.pace.outcome.label),
        "compressor": if_any(lambda row: row.pace.outcome.compression),
        "learning rate (dense)": if_any(_learning_rates),
        "times as fast": if_any(lambda row: row.pace.gain_text),
        "step ms (dense)": lambda row: f"{digits(1e3 * row.pace.own.step)} ({digits(1e3 * row.pace.dense.step)})",
        "score": if_any(lambda row: change_text(row.pace.outcome, row.projection.dense)),
    }
    text = (
        "The fastest of the methods whose model is as good as the dense one: its perplexity not more than "
        f"{100 * TOLERANCE:.0f} % higher, its accuracy not more than {100 * TOLERANCE:.0f} point lower, and no seed "
        "diverged. Times as fast: on a network that works all the while that gradients are computed, and on one that "
        f"begins when they are done; less than {LEAST_GAIN:g} is not worth it. Score: difference from dense with its "
        "standard deviation over the seeds. Steps are estimates: measured encoding, decoding and computing, real "
        "payloads, computed transfers. Extrapolated: each worker computes as much as with the most workers that were "
        "measured, and decodes more payloads."
    )
    rows = [row for subject in study.subjects() for row in recommendations(study, subject)]
    return filled("Which method and setting", text, columns, rows)


def _learning_rates(row: Recommendation) -> str:
    own, dense = (outcome.parameter("learning_rate") for outcome in (row.pace.outcome, row.projection.dense))
    return f"{own:.3g} ({dense:.3g})"
