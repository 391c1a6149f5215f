"""Figures of what was learned: scores by bytes, training curves, epochs to the best score, best hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import groupby
from statistics import median

from hvd_compress.study.records import Look
from hvd_compress.study.report.charts import Axis, DotPanel, Dots, Figure, Level, Line, LinePanel, slug
from hvd_compress.study.report.methods import label_of
from hvd_compress.study.report.outcomes import Job, Outcome, Study, Subject

__all__ = ["curves", "epochs", "hyper_parameters", "score_axis", "score_by_bytes", "score_by_ratio"]

_PARAMETERS = {
    "learning_rate": Axis("learning rate", log=True),
    "dropout": Axis("dropout", zero=True),
    "momentum": Axis("momentum", zero=True),
}
_WORST_PERPLEXITY, _WORST_LOSS = 1.6, 0.25
"""Multiple of the perplexity of dense training, and accuracy below its, from which on a score is only written down."""
_WORST_SHOWN = 4.0
"""Multiples of the best perplexity up to which training curves are drawn: the first looks would squeeze the rest."""


def score_by_ratio(study: Study, subject: Subject) -> Figure:
    """Test score against the compression ratio on the wire, a panel for each number of workers."""
    x = Axis("compression ratio on the wire (all gradients)", log=True)
    return _scores(study, subject, "ratio", x, lambda outcome: outcome.ratio)


def score_by_bytes(study: Study, subject: Subject) -> Figure:
    """Test score against what a worker sends in a step."""
    x = Axis("gradient bytes of a step and worker, kB", log=True)
    return _scores(study, subject, "bytes", x, lambda outcome: outcome.sent_bytes / 1e3)


def _scores(study: Study, subject: Subject, kind: str, x: Axis, place_on_x: Callable[[Outcome], float]) -> Figure:
    score = subject.score
    y = score_axis(study, subject)
    panels = []
    for job in study.jobs(subject):
        compressed = [outcome for outcome in study.at(job) if outcome.method != "none"]
        lines = tuple(_points(method, list(outcomes), place_on_x) for method, outcomes in _by_method(compressed))
        panels.append(LinePanel(_workers(job), x, y, lines, _dense_level(study, job)))
    text = (
        f"Mean {score.name} on the test part over the seeds, with their range; each method as well tuned as the search "
        "could. Dashed: without compression. A setting whose runs all diverged has no point."
    )
    return Figure(slug(score.name, kind, study.name(subject)), f"{study.name(subject)}: {score.name}", text, (*panels,))


def score_axis(study: Study, subject: Subject) -> Axis:
    """Cut where scores are so much worse than dense that the others would not be told apart."""
    levels = [dense.spread.mean for job in study.jobs(subject) if (dense := study.dense(job))]
    if subject.score.lower_is_better:
        return Axis(f"test {subject.score.name}", log=True, high=_WORST_PERPLEXITY * max(levels) if levels else None)
    return Axis(f"test {subject.score.name}", low=max(0.0, min(levels) - _WORST_LOSS) if levels else None)


def _points(method: str, outcomes: list[Outcome], place_on_x: Callable[[Outcome], float]) -> Line:
    outcomes.sort(key=place_on_x)
    x = tuple(place_on_x(outcome) for outcome in outcomes)
    spreads = [outcome.spread for outcome in outcomes]
    ends = tuple(spread.low for spread in spreads), tuple(spread.high for spread in spreads)
    return Line(method, label_of(method), x, tuple(spread.mean for spread in spreads), *ends)


def curves(study: Study, subject: Subject, workers: int, *, by_bytes: bool = False) -> Figure:
    """Validation score while training, a panel for each method, against epochs or bytes."""
    score = subject.score
    job = Job(subject, workers)
    x = Axis("megabytes sent by a worker", log=True) if by_bytes else Axis("epochs")
    dense = study.dense(job)
    best = [outcome.runs[0].validation_score for outcome in study.at(job)]
    shown = min((value for value in best if math.isfinite(value)), default=math.nan) * _WORST_SHOWN
    y = (
        Axis(f"validation {score.name}", log=True, high=shown)
        if score.lower_is_better
        else Axis(f"validation {score.name}")
    )

    def line(outcome: Outcome, nth: int) -> Line:
        looks = outcome.runs[0].looks
        xs = tuple(look.sent_bytes / 1e6 if by_bytes else look.epoch for look in looks)
        return Line(outcome.method, outcome.setting or outcome.label, xs, tuple(look.score for look in looks), nth=nth)

    panels = []
    for method, outcomes in _by_method(outcome for outcome in study.at(job) if outcome is not dense):
        lines = [line(outcome, nth) for nth, outcome in enumerate(outcomes)]
        panels.append(LinePanel(label_of(method), x, y, (*([line(dense, 0)] if dense else []), *lines), markers=False))
    kind = "bytes" if by_bytes else "epochs"
    return Figure(
        slug("curves", kind, study.name(subject), workers),
        f"{study.name(subject)}, {_workers(job)}: {score.name} while training",
        f"Validation {score.name} of the smallest seed, up to where training stopped. In each panel: one method at "
        "each of its settings, and training without compression.",
        tuple(panels),
        shared_legend=False,
    )


def epochs(study: Study, subject: Subject) -> Figure:
    """Epochs until the best validation score."""

    def dots(outcome: Outcome) -> Dots:
        values = tuple(_best_look(run.looks, run.best_step).epoch for run in outcome.runs if run.looks)
        return Dots(outcome.label, outcome.method, values, median(values) if values else math.nan)

    panels = [
        DotPanel(_workers(job), Axis("epochs", zero=True), tuple(map(dots, study.at(job))))
        for job in study.jobs(subject)
    ]
    return Figure(
        slug("convergence", study.name(subject)),
        f"{study.name(subject)}: epochs to the best validation {subject.score.name}",
        "A dot for each seed; a bar at their median.",
        tuple(panels),
    )


def _best_look(looks: tuple[Look, ...], best_step: int) -> Look:
    return next((look for look in looks if look.step >= best_step), looks[-1])


def hyper_parameters(study: Study, subject: Subject) -> Figure | None:
    """The hyper-parameters of the best trials; None where nothing was searched."""
    pooled: dict[str, list[Outcome]] = {}
    for job in study.jobs(subject):
        for outcome in study.at(job):
            pooled.setdefault(outcome.label, []).append(outcome)

    def dots(label: str, outcomes: list[Outcome], name: str) -> Dots:
        trials = (trial for outcome in outcomes for trial in outcome.top_quarter())
        values = tuple(trial.parameters[name] for trial in trials if name in trial.parameters)
        return Dots(label, outcomes[0].method, values, median(values) if values else math.nan)

    panels = []
    for name, axis in _PARAMETERS.items():
        rows = tuple(dots(label, outcomes, name) for label, outcomes in pooled.items())
        if any(len(row.values) for row in rows):
            panels.append(DotPanel(axis.label, axis, tuple(row for row in rows if row.values)))
    if not panels:
        return None
    return Figure(
        slug("hyper-parameters", study.name(subject)),
        f"{study.name(subject)}: hyper-parameters of the best trials",
        "Those trials of each search that are among its best quarter by validation score, all numbers of workers "
        "together; a bar at their median.",
        tuple(panels),
    )


def _by_method(outcomes: Iterable[Outcome]) -> Iterable[tuple[str, Iterable[Outcome]]]:
    return groupby(outcomes, key=lambda outcome: outcome.method)


def _workers(job: Job) -> str:
    return f"{job.workers} worker{'s' * (job.workers > 1)}"


def _dense_level(study: Study, job: Job) -> Level | None:
    dense = study.dense(job)
    return Level("dense", dense.spread.mean, dense.spread.low, dense.spread.high) if dense else None
