"""What JointSQ's authors claim, as claims."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hvd_compress.study.report.advice import TOLERANCE, acceptable
from hvd_compress.study.report.claims import PERCENT, PLAIN, POINTS, TIMES, Case, Claim
from hvd_compress.study.report.equal_bytes import Comparison, comparisons, kind_of, needed
from hvd_compress.study.report.methods import COUNTED, counted_ratio, label_of
from hvd_compress.study.report.outcomes import Job, Outcome, Study
from hvd_compress.study.report.speed import projections

__all__ = ["jointsq_claims"]

_SOURCE = "JointSQ"
_AROUND_1000 = 800
"""From this ratio on. On small models headers of small tensors keep 1000x from being reached."""
_NEAR_LOSSLESS = f"not worse than dense by more than {100 * TOLERANCE:.0f} % of the perplexity or a point of accuracy"
_EARLIER = ("topk", "dgc", "qsgd", "topk_qsgd")
_LINK = 1e9


def jointsq_claims(study: Study) -> list[Claim]:
    """All of them, measured or not."""
    compared = comparisons(study)

    def claim(statement: str, cases: Iterator[Case]) -> Claim:
        return Claim(_SOURCE, statement, tuple(cases))

    return [
        Claim(
            "both",
            "dense training has learned: LSTM small reaches the quickstart's perplexity on the King James Bible, "
            "and an accuracy of 97 % on the digits",
            tuple(_learned(study)),
        ),
        claim(
            "at equal bytes JointSQ is not worse than earlier methods, beyond the standard deviation over the seeds",
            _against_others(compared),
        ),
        claim(
            f"1000x as its authors count is near-lossless: {_NEAR_LOSSLESS}",
            _lossless(study, study.outcomes, COUNTED),
        ),
        claim(
            f"about 1000x on the wire is near-lossless: {_NEAR_LOSSLESS}",
            _lossless(study, tuple(comparison.jointsq for comparison in compared), "jointsq"),
        ),
        claim("JointSQ's encoding takes not more than twice as long as top-k's at equal bytes", _encoding(compared)),
        claim(
            "steps are at least 1.4 times as fast as with earlier methods (at 1 Gbit/s, each method at that of its "
            "settings with an acceptable score which is fastest)",
            _speed(study),
        ),
    ]


def _unit(job: Job) -> str:
    return PERCENT if job.subject.score.lower_is_better else POINTS


def _learned(study: Study) -> Iterator[Case]:
    for job in study.jobs():
        dense, least = study.dense(job), needed(job.subject)
        if dense is not None and least is not None:
            at_most = job.subject.score.lower_is_better
            yield Case(f"{job.label}, {job.subject.data}", dense.spread.mean, least, at_most=at_most, unit=PLAIN)


def _against_others(compared: list[Comparison]) -> Iterator[Case]:
    for comparison in compared:
        score, own = comparison.job.subject.score, comparison.jointsq.spread
        for other in comparison.others:
            if other.method in _EARLIER and other.spread.values:
                sd = score.harm_sd(own, other.spread)
                where = f"{comparison.job.label}, {comparison.label}, against {label_of(other.method)}"
                limit = 0.0 if math.isnan(sd) else sd
                yield Case(where, score.harm(own.mean, other.spread.mean), limit, unit=_unit(comparison.job))


def _lossless(study: Study, outcomes: tuple[Outcome, ...], method: str) -> Iterator[Case]:
    for outcome in outcomes:
        dense = study.dense(outcome.job)
        ratio = counted_ratio(outcome.compression) if method == COUNTED else outcome.compressed_ratio
        if dense is not None and outcome.method == method and ratio >= _AROUND_1000:
            harm = outcome.job.subject.score.harm(outcome.spread.mean, dense.spread.mean)
            where = f"{outcome.job.label} ({kind_of(outcome.job.subject.model)}), {outcome.compressed_ratio:.0f}x"
            yield Case(f"{where} on the wire", harm, TOLERANCE, unit=_unit(outcome.job))


def _encoding(compared: list[Comparison]) -> Iterator[Case]:
    for comparison in compared:
        for other in comparison.others:
            if other.method == "topk" and other.milliseconds.encode > 0:
                times = comparison.jointsq.milliseconds.encode / other.milliseconds.encode
                yield Case(f"{comparison.job.label}, {comparison.label}", times, 2.0, unit=TIMES)


def _speed(study: Study) -> Iterator[Case]:
    for projection in (made for subject in study.subjects() for made in projections(study, subject) if made.measured):
        fastest: dict[str, float] = {}
        for pace in projection.paces(_LINK):
            if acceptable(pace.outcome, projection.dense):
                method = pace.outcome.method
                fastest[method] = min(fastest.get(method, math.inf), pace.own.step)
        for method in _EARLIER:
            if method in fastest and "jointsq" in fastest:
                gain = fastest[method] / fastest["jointsq"]
                yield Case(f"{projection.job.label}, than {label_of(method)}", gain, 1.4, at_most=False, unit=TIMES)
