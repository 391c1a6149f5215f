"""Draws figures: into a PNG file, or as SVG for a page."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from hvd_compress.study.report.charts import Figure, LinePanel, Panel
from hvd_compress.study.report.panels import draw_panel, heights, row_labels, scale

__all__ = ["save_png", "svg"]

_INK, _CURRENT = "#010203", "currentColor"
"""A colour that nothing else has stands for that of the text, which a page has light or dark."""
_COLUMNS = 3


def save_png(figure: Figure, path: Path) -> None:
    """Draw a figure, black on white."""
    with _style("black"):
        _draw(figure, "black").savefig(path, dpi=150, facecolor="white")


def svg(figure: Figure) -> str:
    """Draw a figure for a page: an ``<svg>`` whose text and axes take on the page's colour."""
    with _style(_INK, **{"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        file = StringIO()
        _draw(figure, _INK).savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :].replace(_INK, _CURRENT)


def _style(ink: str, **more: Any) -> AbstractContextManager[None]:
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    colours = dict.fromkeys(names, ink)
    spines = {"axes.spines.top": False, "axes.spines.right": False}
    sizes = {"font.size": 9, "axes.titlesize": 10, "legend.fontsize": 8, "lines.markersize": 5, "hatch.linewidth": 0.4}
    settings: Any = {**colours, **spines, **sizes, "legend.frameon": False, "grid.alpha": 0.4, **more}
    return matplotlib.rc_context(settings)


def _draw(figure: Figure, ink: str) -> Canvas:
    columns = min(_COLUMNS, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    height = max(map(_height, figure.panels))
    canvas = Canvas(figsize=(max(6.4, 1.6 + 3.1 * columns), rows * height + 0.9), layout="constrained")
    together = [panel for panel in figure.panels if isinstance(panel, LinePanel)]
    shared = bool(together)
    axes = [one for row in canvas.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared) for one in row]
    for index, (one, panel) in enumerate(zip_longest(axes, figure.panels)):
        if panel is None:
            one.remove()
            continue
        draw_panel(one, panel, ink)
        if index % columns and row_labels(panel) and row_labels(panel) == row_labels(figure.panels[0]):
            one.tick_params(labelleft=False)
        if isinstance(panel, LinePanel):
            scale(one, "x", panel.x, [x for other in together for line in other.lines for x in line.x])
            scale(one, "y", panel.y, [y for other in together for y in heights(other)])
            one.tick_params(labelleft=True, labelbottom=True)
    canvas.suptitle(figure.title, fontsize=11)
    _add_legend(canvas, axes[: len(figure.panels)], figure)
    return canvas


def _height(panel: Panel) -> float:
    return 3.0 if isinstance(panel, LinePanel) else 0.8 + 0.19 * len(panel.rows)


def _add_legend(canvas: Canvas, axes: list[Axes], figure: Figure) -> None:
    """Below all panels; where each has lines of its own, below each."""
    if not figure.shared_legend:
        for one in axes:
            one.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
        return
    found: dict[str, Any] = {}
    for one in axes:
        handles, labels = one.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if found:
        canvas.legend(handles=list(found.values()), labels=list(found), loc="outside lower center", ncols=4)
