"""What a table shows, as text; and the tables of what was trained and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from hvd_compress.study.records import Record
from hvd_compress.study.report.outcomes import Outcome, Study, Subject

__all__ = ["Table", "change_text", "filled", "results", "trained"]

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """Rows of text under headings.

    Parameters
    ----------
    title, text : str
        ``text`` says what has to be known to read it.
    columns : tuple of str
    rows : tuple of tuple of str
    """

    title: str
    text: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def filled(title: str, text: str, columns: Mapping[str, Callable[[T], str]], items: Sequence[T]) -> Table:
    """A table with a row for each item; ``columns`` say what of it stands under which heading."""
    rows = tuple(tuple(cell(item) for cell in columns.values()) for item in items)
    return Table(title, text, tuple(columns), rows)


def change_text(outcome: Outcome, dense: Outcome | None) -> str:
    """By how much the score differs from that of dense training, with its standard deviation over the seeds."""
    if dense is None or outcome is dense:
        return ""
    score = outcome.job.subject.score
    change = score.change(outcome.spread.mean, dense.spread.mean)
    return score.change_text(change, score.harm_sd(outcome.spread, dense.spread))


def trained(study: Study) -> Table:
    """What was trained, how often, and how it ended."""

    def outcomes(subject: Subject) -> list[Outcome]:
        return [outcome for outcome in study.outcomes if outcome.job.subject == subject]

    def runs(subject: Subject) -> list[Record]:
        return [run for outcome in outcomes(subject) for run in (*outcome.searched, *outcome.finals)]

    columns: dict[str, Callable[[Subject], str]] = {
        "model": lambda subject: subject.model,
        "data": lambda subject: subject.data,
        "parameters": lambda subject: f"{runs(subject)[0].model_size:,}",
        "workers": lambda subject: ", ".join(str(job.workers) for job in study.jobs(subject)),
        "trials of searches": lambda subject: str(sum(len(outcome.searched) for outcome in outcomes(subject))),
        "final runs": lambda subject: str(sum(len(outcome.finals) for outcome in outcomes(subject))),
        "hours": lambda subject: f"{sum(run.seconds for run in runs(subject)) / 3600:.1f}",
        "final runs that diverged": lambda subject: str(sum(outcome.spread.diverged for outcome in outcomes(subject))),
        "runs whose ranks ended unequal": lambda subject: str(sum(not run.ranks_equal for run in runs(subject))),
    }
    return filled("What was trained", "", columns, study.subjects())


def results(study: Study, subject: Subject) -> Table:
    """Every method and setting: what it learned, what it sent and what that cost."""
    columns: dict[str, Callable[[Outcome], str]] = {
        "workers": lambda outcome: str(outcome.job.workers),
        "method": lambda outcome: outcome.label,
        f"test {subject.score.name}": lambda outcome: subject.score.spread_text(outcome.spread),
        "seeds": lambda outcome: str(len(outcome.finals)) if outcome.finals else "search only",
        "against dense": lambda outcome: change_text(outcome, study.dense(outcome.job)),
        "ratio, all gradients": lambda outcome: f"{outcome.ratio:.1f}",
        "ratio, compressed gradients": lambda outcome: f"{outcome.compressed_ratio:.1f}",
        "kB a step": lambda outcome: f"{outcome.sent_bytes / 1e3:,.1f}",
        "step ms": lambda outcome: f"{outcome.milliseconds.step:.1f}",
        "encode ms": lambda outcome: f"{outcome.milliseconds.encode:.2f}",
        "wait ms": lambda outcome: f"{outcome.milliseconds.wait:.2f}",
        "decode ms": lambda outcome: f"{outcome.milliseconds.decode:.2f}",
        "learning rate": lambda outcome: f"{outcome.parameter('learning_rate'):.3g}",
        "epochs": lambda outcome: (
            f"{median(run.looks[-1].epoch if run.looks else math.nan for run in outcome.runs):.1f}"
        ),
    }
    text = (
        "Mean and standard deviation over the seeds; differences from dense with the standard deviation that both have "
        "together. kB are those that a worker hands to Horovod. Epochs: until training stopped."
    )
    rows = [outcome for job in study.jobs(subject) for outcome in study.at(job)]
    return filled(study.name(subject), text, columns, rows)
