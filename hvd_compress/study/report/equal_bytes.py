"""JointSQ beside the other methods at the same bytes on the wire, and beside the papers' own ways to count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from hvd_compress.study.report.charts import Axis, DotPanel, Dots, Figure, Level, slug
from hvd_compress.study.report.methods import COUNTED, counted_ratio, label_of
from hvd_compress.study.report.outcomes import Job, Outcome, Study, Subject
from hvd_compress.study.report.tables import Table, change_text, filled
from hvd_compress.study.report.training import score_axis

__all__ = ["Comparison", "comparisons", "counted", "figures", "kind_of", "needed", "table"]

_SAME = 0.1
"""Bytes that differ by no larger share count as the same."""
_LEARNED = {("lm", "lstm-small", "kjv"): 224.5, ("vision", "", "digits"): 0.97}
"""What dense training must reach for a comparison to count, by task, model ("": any) and data."""
_KINDS = {"lstm": "RNN", "transformer": "Transformer", "vit": "Transformer", "resnet": "CNN", "vgg": "CNN"}


def kind_of(model: str) -> str:
    """CNN, RNN or Transformer; the model's own name where neither is known."""
    return next((kind for start, kind in _KINDS.items() if model.startswith(start)), model)


def needed(subject: Subject) -> float | None:
    """The score that dense training must reach for a comparison to count; None where none is agreed on."""
    return _LEARNED.get(subject, _LEARNED.get((subject.task, "", subject.data)))


@dataclass(frozen=True)
class Comparison:
    """Methods that send the same bytes in place of the same gradients.

    Parameters
    ----------
    jointsq : Outcome
    others : tuple of Outcome
        One for each of the other methods, as far as one of its settings comes to the same bytes.
    smallest : Outcome or None
        QSGD with its fewest bits, if that is more bytes than the others'.
    dense : Outcome or None
    """

    jointsq: Outcome
    others: tuple[Outcome, ...]
    smallest: Outcome | None
    dense: Outcome | None

    @property
    def job(self) -> Job:
        """Where they were trained."""
        return self.jointsq.job

    @property
    def label(self) -> str:
        """The compression ratio of the compressed gradients."""
        return f"{self.jointsq.compressed_ratio:.0f}x"

    @property
    def rows(self) -> tuple[Outcome, ...]:
        """All but dense, JointSQ first."""
        return (self.jointsq, *self.others, *((self.smallest,) if self.smallest else ()))

    def name(self, outcome: Outcome) -> str:
        """The method; with its ratio where that is not the one of the comparison."""
        marked = f" (only {outcome.compressed_ratio:.1f}x)" if outcome is self.smallest else ""
        return label_of(outcome.method) + marked


def comparisons(study: Study) -> list[Comparison]:
    """One for each setting of JointSQ on each job."""
    return [_beside(study, outcome) for outcome in study.outcomes if outcome.method == "jointsq"]


def _beside(study: Study, jointsq: Outcome) -> Comparison:
    def distance(other: Outcome) -> float:
        return abs(other.compressed_bytes / jointsq.compressed_bytes - 1)

    beside = (other for other in study.at(jointsq.job) if other.method not in ("none", "jointsq", COUNTED))
    closest = (min(of, key=distance) for _, of in groupby(beside, key=lambda other: other.method))
    others = tuple(other for other in closest if distance(other) <= _SAME)
    quantised = study.find(jointsq.job, "qsgd")
    smallest = min(quantised, key=lambda other: other.compressed_bytes, default=None)
    larger = smallest is not None and smallest.compressed_bytes > (1 + _SAME) * jointsq.compressed_bytes
    return Comparison(jointsq, others, smallest if larger else None, study.dense(jointsq.job))


def figures(study: Study) -> list[Figure]:
    """A figure for each job, a panel for each compression ratio."""
    by_job: dict[Job, list[Comparison]] = {}
    for comparison in comparisons(study):
        by_job.setdefault(comparison.job, []).append(comparison)
    return [_figure(study, job, together) for job, together in by_job.items()]


def _figure(study: Study, job: Job, together: list[Comparison]) -> Figure:
    score = job.subject.score
    panels = tuple(_panel(comparison, score_axis(study, job.subject)) for comparison in together)
    return Figure(
        slug("equal-bytes", study.name(job.subject), job.workers),
        f"{job.label} ({kind_of(job.subject.model)}): {score.name} at equal bytes",
        "A dot for each seed, a bar at the mean; dashed: dense training, with the range of its seeds. In each panel "
        "all methods send as many bytes as JointSQ does, positions and scales included, except where it says how much "
        "less one compresses.",
        panels,
    )


def _panel(comparison: Comparison, x: Axis) -> DotPanel:
    dense = comparison.dense
    level = Level("dense", dense.spread.mean, dense.spread.low, dense.spread.high) if dense else None
    rows = tuple(
        Dots(comparison.name(outcome), outcome.method, outcome.spread.values, outcome.spread.mean)
        for outcome in comparison.rows
    )
    return DotPanel(comparison.label, x, rows, level)


def table(study: Study) -> Table:
    """All comparisons in numbers."""
    rows = [(comparison, outcome) for comparison in comparisons(study) for outcome in comparison.rows]
    columns: dict[str, Callable[[tuple[Comparison, Outcome]], str]] = {
        "model": lambda row: f"{study.name(row[0].job.subject)} ({kind_of(row[0].job.subject.model)})",
        "workers": lambda row: str(row[0].job.workers),
        "ratio": lambda row: row[0].label,
        "method": lambda row: row[0].name(row[1]),
        "kB a step": lambda row: f"{row[1].compressed_bytes / 1e3:,.2f}",
        "test score": lambda row: row[1].job.subject.score.spread_text(row[1].spread),
        "seeds": lambda row: str(len(row[1].finals)) if row[1].finals else "search only",
        "against dense": lambda row: change_text(row[1], row[0].dense),
        "dense": lambda row: _dense_text(row[0]),
        "training loss at the end": lambda row: _loss_text(row[1]),
        "encode ms": lambda row: f"{row[1].milliseconds.encode:.2f}",
    }
    text = (
        "Ratio and kB: of the compressed gradients, everything that is sent counted. Scores: mean and standard "
        "deviation over the seeds, perplexity (lower is better) or accuracy (higher is better). Loss: "
        "cross-entropy in nats. A comparison counts only where dense training has learned."
    )
    return filled("JointSQ and the others at equal bytes", text, columns, rows)


def _dense_text(comparison: Comparison) -> str:
    subject, dense = comparison.job.subject, comparison.dense
    if dense is None:
        return "not trained"
    score, least = subject.score, needed(subject)
    short = least is not None and score.harm(dense.spread.mean, least) > 0
    return score.spread_text(dense.spread) + (f" (needs {score.text(least)} to count)" if short and least else "")


def _loss_text(outcome: Outcome) -> str:
    losses = [run.looks[-1].train_loss for run in outcome.runs if run.looks]
    finite = [loss for loss in losses if math.isfinite(loss)]
    return f"{fmean(finite):.3f}" if finite else "diverged"


def counted(study: Study) -> Table:
    """What the papers would call the compression ratio, beside what it is."""
    jobs = [study.jobs(subject)[-1] for subject in study.subjects()]
    rows = [outcome for job in jobs for outcome in study.at(job) if not math.isnan(counted_ratio(outcome.compression))]
    columns: dict[str, Callable[[Outcome], str]] = {
        "model": lambda outcome: study.name(outcome.job.subject),
        "method": lambda outcome: outcome.label,
        "as its paper counts": lambda outcome: f"{counted_ratio(outcome.compression):,.4g}x",
        "on the wire, compressed gradients": lambda outcome: f"{outcome.compressed_ratio:,.1f}x",
        "on the wire, all gradients": lambda outcome: f"{outcome.ratio:,.1f}x",
        "test score": lambda outcome: outcome.job.subject.score.spread_text(outcome.spread),
        "against dense": lambda outcome: change_text(outcome, study.dense(outcome.job)),
    }
    text = (
        "The study of language models charges 64 bits for each entry that a sparsifier sends, and log2(levels) + 1 "
        "bits for each of QSGD's; JointSQ's authors charge the bits of its codes, and neither positions nor scales. On "
        "the wire everything is counted; small tensors, which go uncompressed, are part of all gradients."
    )
    return filled("The papers' own counting", text, columns, rows)
