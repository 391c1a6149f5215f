"""What a report consists of: sections of tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvd_compress.study.report import advice, equal_bytes, paces, tables
from hvd_compress.study.report.charts import Figure
from hvd_compress.study.report.claims import Case, Claim
from hvd_compress.study.report.claims_jointsq import jointsq_claims
from hvd_compress.study.report.claims_lm import lm_claims
from hvd_compress.study.report.outcomes import Study, Subject
from hvd_compress.study.report.reference import published_change
from hvd_compress.study.report.tables import Table
from hvd_compress.study.report.times import step_times
from hvd_compress.study.report.training import curves, epochs, hyper_parameters, score_by_bytes, score_by_ratio

__all__ = ["Section", "claims", "sections"]

_SLOW = 1e9


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    heading: str
    items: tuple[Table | Figure, ...]


def sections(study: Study) -> list[Section]:
    """All parts of a report, in order; a part of which nothing was measured is there with empty tables."""
    subjects = study.subjects()
    return [
        Section("What was trained", (tables.trained(study),)),
        Section("Recommendation", (advice.table(study),)),
        Section(
            "Where this agrees with the papers, and where not", (_verdicts(study), _published(study), _figures(study))
        ),
        Section(
            "JointSQ at equal bytes",
            (*equal_bytes.figures(study), equal_bytes.table(study), equal_bytes.counted(study)),
        ),
        Section("Speed", tuple(item for subject in subjects for item in _speed(study, subject))),
        Section("Language models", tuple(item for s in study.subjects("lm") for item in _training(study, s))),
        Section("Vision", tuple(item for s in study.subjects("vision") for item in _training(study, s))),
        Section("All results", tuple(tables.results(study, subject) for subject in subjects)),
    ]


def claims(study: Study) -> list[Claim]:
    """All claims, measured or not."""
    return [*jointsq_claims(study), *lm_claims(study)]


def _verdicts(study: Study) -> Table:
    def narrowest(claim: Claim) -> str:
        case = claim.narrowest
        return f"{case.where}: {case.found}; expected: {case.expected}" if case else ""

    columns: dict[str, Callable[[Claim], str]] = {
        "claim": lambda claim: claim.statement,
        "source": lambda claim: claim.source,
        "verdict": lambda claim: claim.verdict,
        "the least favourable figure": narrowest,
    }
    return tables.filled("What the papers lead one to expect", "", columns, claims(study))


def _figures(study: Study) -> Table:
    columns: dict[str, Callable[[tuple[Claim, Case]], str]] = {
        "claim": lambda row: row[0].statement if row[1] is row[0].cases[0] else "",
        "where": lambda row: row[1].where,
        "found": lambda row: row[1].found,
        "expected": lambda row: row[1].expected,
        "": lambda row: "holds" if row[1].holds else "does not hold",
        "off by": lambda row: row[1].off_by,
    }
    rows = [(claim, case) for claim in claims(study) for case in claim.cases]
    text = "Of means over the seeds. Perplexities are compared as shares, accuracies as differences in points."
    return tables.filled("Figure by figure", text, columns, rows)


def _published(study: Study) -> Table:
    rows = []
    for outcome in study.outcomes:
        dense = study.dense(outcome.job)
        subject = outcome.job.subject
        change = published_change(subject.model, outcome.job.workers, outcome.method, outcome.setting)
        if dense is not None and change is not None and subject.task == "lm":
            here = tables.change_text(outcome, dense)
            rows.append(
                (subject.model, str(outcome.job.workers), outcome.label, here, subject.score.change_text(change))
            )
    text = "The published figures are of one seed, on another text (Penn Treebank), with up to 50 epochs and 60 draws."
    columns = ("model", "workers", "method", "perplexity against dense, here", "as published")
    return Table("Beside the published perplexities", text, columns, tuple(rows))


def _speed(study: Study, subject: Subject) -> list[Table | Figure]:
    items = (paces.speed_up(study, subject), paces.table(study, subject))
    times = (step_times(study, subject), step_times(study, subject, _SLOW))
    return [item for item in (*items, *times) if item is not None]


def _training(study: Study, subject: Subject) -> list[Table | Figure]:
    jobs = study.jobs(subject)
    drawn: list[Figure | None] = [score_by_ratio(study, subject)]
    if subject.task == "vision":
        drawn.append(score_by_bytes(study, subject))
        drawn += [curves(study, subject, job.workers, by_bytes=True) for job in jobs if job.workers > 1]
    drawn += [curves(study, subject, job.workers) for job in jobs]
    drawn += [epochs(study, subject), hyper_parameters(study, subject)]
    return [figure for figure in drawn if figure is not None]
