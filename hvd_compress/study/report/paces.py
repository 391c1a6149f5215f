"""The figure and the table of speed-ups."""

from __future__ import annotations

import math
from collections.abc import Callable

from hvd_compress.bench.exchange_report import speed_text
from hvd_compress.study.report.advice import acceptable
from hvd_compress.study.report.charts import Axis, Figure, Level, Line, LinePanel, slug
from hvd_compress.study.report.outcomes import Outcome, Study, Subject
from hvd_compress.study.report.speed import SPEEDS, Projection, projections
from hvd_compress.study.report.tables import Table, filled

__all__ = ["speed_up", "table"]

_DRAWN = tuple(10 ** (7.75 + 0.25 * step) for step in range(12))
_USUAL = 1e9


def speed_up(study: Study, subject: Subject) -> Figure | None:
    """How many times faster than dense, against the speed of the links; None where there is nothing to estimate."""
    made = [(projection, _best_settings(projection)) for projection in projections(study, subject)]
    panels = tuple(_panel(projection, chosen) for projection, chosen in made if chosen)
    if not panels:
        return None
    return Figure(
        slug("speed-up", study.name(subject)),
        f"{study.name(subject)}: times as fast as dense training",
        "Each method at that of its settings with an acceptable score which is fastest at 1 Gbit/s; with * at "
        "its mildest, where none has. The exchange begins when all gradients are there. Where a line falls below 1, "
        "compressing costs more time than it saves.",
        panels,
    )


def _best_settings(projection: Projection) -> dict[str, Outcome]:
    """One outcome of each method, by what it is called in the figure."""
    best: dict[str, tuple[str, Outcome]] = {}
    paces = sorted(projection.paces(_USUAL)[1:], key=lambda pace: pace.own.step)
    for pace in (pace for pace in paces if acceptable(pace.outcome, projection.dense)):
        best.setdefault(pace.outcome.method, (pace.outcome.label, pace.outcome))
    for outcome in projection.outcomes[1:]:
        best.setdefault(outcome.method, (f"{outcome.label} *", outcome))
    return dict(sorted(best.values(), key=lambda chosen: projection.outcomes.index(chosen[1])))


def _panel(projection: Projection, chosen: dict[str, Outcome]) -> LinePanel:
    paces = [projection.paces(speed) for speed in _DRAWN]

    def line(label: str, outcome: Outcome) -> Line:
        index = projection.outcomes.index(outcome)
        return Line(outcome.method, label, _DRAWN, tuple(at_speed[index].gain for at_speed in paces))

    lines = tuple(line(label, outcome) for label, outcome in chosen.items())
    ticks = tuple((speed, speed_text(speed).replace(" ", "").removesuffix("bit/s")) for speed in SPEEDS)
    x = Axis("speed of the links, bit/s", log=True, ticks=ticks)
    return LinePanel(
        projection.label, x, Axis("times as fast as dense", log=True), lines, Level("dense", 1.0, 1.0, 1.0)
    )


def table(study: Study, subject: Subject) -> Table:
    """Speed-ups of all settings that were measured, and of the best of each method with more workers."""
    rows = [
        (projection, index)
        for projection in projections(study, subject)
        for index, outcome in enumerate(projection.outcomes)
        if index and (projection.measured or outcome in _best_settings(projection).values())
    ]

    def gain_at(speed: float) -> Callable[[tuple[Projection, int]], str]:
        return lambda row: row[0].paces(speed)[row[1]].gain_text

    columns: dict[str, Callable[[tuple[Projection, int]], str]] = {
        "workers": lambda row: row[0].label.replace(" workers", ""),
        "method": lambda row: row[0].outcomes[row[1]].label,
        "as measured here": lambda row: _measured(*row),
        **{speed_text(speed): gain_at(speed) for speed in SPEEDS},
        "break-even": lambda row: _break_even_text(row[0].break_even(row[0].outcomes[row[1]])),
    }
    text = (
        "Times as fast as dense: on a network that works all the while that gradients are computed, and on one that "
        "begins when they are done; the smaller number first. Break-even: the speed of the links up to which "
        "compressing pays in the latter case. As measured here: on the machine of the study, whatever joins its "
        "workers."
    )
    return filled(study.name(subject), text, columns, rows)


def _measured(projection: Projection, index: int) -> str:
    if not projection.measured:
        return ""
    return f"{projection.dense.milliseconds.step / projection.outcomes[index].milliseconds.step:.2f}"


def _break_even_text(speed: float) -> str:
    if speed == 0:
        return "pays at no speed"
    return "pays at every speed" if math.isinf(speed) else speed_text(speed)
