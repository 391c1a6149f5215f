"""Writes a report: one page that needs nothing beside it, and its pictures as PNG files too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hvd_compress.cli.progress import tracked
from hvd_compress.study.report.charts import Figure
from hvd_compress.study.report.contents import sections
from hvd_compress.study.report.draw import draw
from hvd_compress.study.report.outcomes import Study

__all__ = ["PAGE", "write_report"]

PAGE = "report.html"
_TITLE = "What gradient compression does to training"


def write_report(study: Study, out: Path) -> list[Path]:
    """Write the page and the pictures; return their paths, the page first.

    Parameters
    ----------
    study : Study
    out : Path
        A folder, which must be there.
    """
    parts = sections(study)
    figures = [item for part in parts for item in part.items if isinstance(item, Figure)]
    drawn = {figure.name: draw(figure, out / f"{figure.name}.png") for figure in tracked(figures, "Drawing")}
    shown = [
        {
            "heading": part.heading,
            "items": [_shown(item, drawn) if isinstance(item, Figure) else item for item in part.items],
        }
        for part in parts
    ]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    text = environment.get_template("page.html").render(title=_TITLE, summary=_summary(study), sections=shown)
    page = out / PAGE
    page.write_text(text + "\n", encoding="utf-8")
    return [page, *(out / f"{figure.name}.png" for figure in figures)]


def _shown(figure: Figure, drawn: dict[str, str]) -> dict[str, Any]:
    return {"title": figure.title, "text": figure.text, "svg": drawn[figure.name]}


def _summary(study: Study) -> str:
    runs = [run for outcome in study.outcomes for run in (*outcome.searched, *outcome.finals)]
    return (
        f"From the records of {len(runs):,} training runs with stock Horovod, {len(study.outcomes)} methods and "
        "settings on their models and numbers of workers. Every method was tuned on its own; what was sent was counted."
    )
