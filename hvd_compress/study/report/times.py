"""Figures of where the time of a step goes."""

from __future__ import annotations

from hvd_compress.bench.exchange_report import speed_text
from hvd_compress.bench.link import link_at
from hvd_compress.study.report.charts import Axis, BarPanel, Figure, Row, slug
from hvd_compress.study.report.outcomes import Job, Outcome, Study, Subject
from hvd_compress.study.report.speed import wire_seconds

__all__ = ["step_times"]

_PARTS = ("compute", "encode", "decode")


def step_times(study: Study, subject: Subject, bits_per_second: float | None = None) -> Figure | None:
    """Time of a step by its parts, a panel for each number of workers; None if no panel is left.

    Parameters
    ----------
    bits_per_second : float, optional
        Speed of a link between the workers, for which the transfer is computed. By default the wait is shown as it was
        measured.
    """
    measured = bits_per_second is None
    jobs = [job for job in study.jobs(subject) if measured or job.workers > 1]
    if not jobs:
        return None
    last = "wait" if bits_per_second is None else f"transfer at {speed_text(bits_per_second)}"
    panels = [
        BarPanel(
            f"{job.workers} worker{'s' * (job.workers > 1)}",
            Axis("milliseconds of a step", zero=True),
            (*_PARTS, last),
            tuple(_row(outcome, job, bits_per_second) for outcome in study.at(job)),
        )
        for job in jobs
    ]
    where = "as measured" if bits_per_second is None else f"with links of {speed_text(bits_per_second)}"
    text = (
        "Wait: for the other workers and for the exchange on the machine of the study."
        if bits_per_second is None
        else "Transfer: bytes on the wire by the speed of the links, none of it hidden behind computing; the rest "
        "is measured. On the wire are 2(W-1)/W x the all-reduced and (W-1) x the gathered bytes, for W workers."
    )
    return Figure(
        slug("step-time", *([] if measured else [last]), study.name(subject)),
        f"{study.name(subject)}: time of a step {where}",
        text,
        tuple(panels),
    )


def _row(outcome: Outcome, job: Job, bits_per_second: float | None) -> Row:
    time = outcome.milliseconds
    last = (
        time.wait if bits_per_second is None else 1e3 * wire_seconds(outcome, link_at(bits_per_second / 8, job.workers))
    )
    return Row(outcome.label, (outcome.compute, time.encode, time.decode, last))
