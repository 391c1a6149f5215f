"""What the study of language models found, as claims."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, geometric_mean

from hvd_compress.study.report.claims import TIMES, Case, Claim
from hvd_compress.study.report.methods import SPARSIFIERS, UNCORRECTED, label_of
from hvd_compress.study.report.outcomes import Job, Outcome, Study

__all__ = ["lm_claims"]

_SOURCE = "study of language models"
CLEARLY = 0.05
"""A perplexity that is clearly worse is higher by this share."""


def lm_claims(study: Study) -> list[Claim]:
    """All of them, measured or not."""
    jobs = [job for subject in study.subjects("lm") for job in study.jobs(subject) if study.dense(job)]

    def claim(statement: str, cases: Iterator[Case]) -> Claim:
        return Claim(_SOURCE, statement, tuple(cases))

    return [
        claim(
            f"random-k is clearly worst: at least {100 * CLEARLY:.0f} % above QSGD and the others at its density",
            _worst(study, jobs),
        ),
        claim("random-k is worse without residual than with", _without_residual(study, jobs)),
        claim(
            "top-k and DGC at density 0.01 are not more than 3 % above dense",
            _against_dense(study, jobs, ("topk", "dgc"), "0.01", 0.03),
        ),
        claim(
            "top-k and DGC at density 0.01 are better than dense",
            _against_dense(study, jobs, ("topk", "dgc"), "0.01", 0.0),
        ),
        claim("QSGD with 3 bit is not more than 4 % above dense", _against_dense(study, jobs, ("qsgd",), "3bit", 0.04)),
        claim(f"density 0.0001 is clearly worse than 0.01: at least {100 * CLEARLY:.0f} %", _sparsest(study, jobs)),
        claim("the best learning rates of sparsifiers are below those of dense training", _learning_rates(study, jobs)),
        claim(
            "encoding and decoding take longest with top-k, then with DGC, then with QSGD",
            _order_of_overhead(study, jobs),
        ),
    ]


def _above(outcome: Outcome, other: Outcome) -> float:
    return outcome.job.subject.score.harm(outcome.spread.mean, other.spread.mean)


def _worst(study: Study, jobs: list[Job]) -> Iterator[Case]:
    for job in jobs:
        for outcome in study.find(job, "randomk"):
            others = [
                other
                for other in study.at(job)
                if (other.method == "qsgd" or (other.method in SPARSIFIERS and other.density == outcome.density))
                and other is not outcome
            ]
            if others:
                # What diverged with every seed is worse still.
                next_worst = max(others, key=lambda other: other.spread.mean if other.spread.values else math.inf)
                where = f"{job.label}, density {outcome.density:g} against {next_worst.label}"
                yield Case(where, _above(outcome, next_worst), CLEARLY, at_most=False)


def _without_residual(study: Study, jobs: list[Job]) -> Iterator[Case]:
    for job in jobs:
        corrected = {outcome.density: outcome for outcome in study.find(job, "randomk") if outcome.spread.values}
        for outcome in study.find(job, UNCORRECTED):
            if outcome.density in corrected:
                above = _above(outcome, corrected[outcome.density])
                yield Case(f"{job.label}, density {outcome.density:g}", above, 0.0, at_most=False)


def _against_dense(
    study: Study, jobs: list[Job], methods: tuple[str, ...], setting: str, limit: float
) -> Iterator[Case]:
    for job in jobs:
        dense = study.dense(job)
        for method in methods:
            for outcome in study.find(job, method):
                if outcome.setting == setting and dense is not None:
                    yield Case(f"{job.label}, {outcome.label}", _above(outcome, dense), limit)


def _sparsest(study: Study, jobs: list[Job]) -> Iterator[Case]:
    for job in jobs:
        for method in ("topk", "dgc"):
            by_density = {outcome.density: outcome for outcome in study.find(job, method)}
            usual, sparsest = by_density.get(0.01), by_density.get(0.0001)
            if usual and sparsest and usual.spread.values:
                where = f"{job.label}, {label_of(method)}"
                yield Case(where, _above(sparsest, usual), CLEARLY, at_most=False)


def _learning_rates(study: Study, jobs: list[Job]) -> Iterator[Case]:
    for job in jobs:
        dense = _best_rates(study.find(job, "none"))
        for method in SPARSIFIERS:
            rates = _best_rates(study.find(job, method))
            if rates and dense:
                share = geometric_mean(rates) / geometric_mean(dense)
                yield Case(f"{job.label}, {label_of(method)} by dense", share, 1.0, unit=TIMES)


def _best_rates(outcomes: list[Outcome]) -> list[float]:
    trials = (trial for outcome in outcomes for trial in outcome.top_quarter())
    return [trial.parameters["learning_rate"] for trial in trials if "learning_rate" in trial.parameters]


def _order_of_overhead(study: Study, jobs: list[Job]) -> Iterator[Case]:
    for job in jobs:
        for slower, faster in (("topk", "dgc"), ("dgc", "qsgd")):
            both = [study.find(job, method) for method in (slower, faster)]
            if all(both):
                times = [fmean(o.milliseconds.encode + o.milliseconds.decode for o in outcomes) for outcomes in both]
                if times[1] > 0:
                    where = f"{job.label}, {label_of(slower)} by {label_of(faster)}"
                    yield Case(where, times[0] / times[1], 1.0, at_most=False, unit=TIMES)
