"""Draws figures: into PNG files, and as SVG for a page."""

from __future__ import annotations

import math
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from hvd_compress.study.report.charts import Figure, LinePanel, Panel
from hvd_compress.study.report.panels import draw_panel, extent, row_labels, scale

__all__ = ["draw"]

_INK, _CURRENT = "#010203", "currentColor"
"""A black that nothing else has stands for the colour of text, which a page has light or dark."""
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_STYLE: Any = dict.fromkeys(_INKED, _INK) | {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "grid.alpha": 0.4,
    "hatch.linewidth": 0.4,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.markersize": 5,
    "svg.fonttype": "none",
}
_COLUMNS = 3
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""It would link to matplotlib, and change every day."""


def draw(figure: Figure, path: Path) -> str:
    """Draw a figure into a PNG file, black on white, and as SVG for a page.

    Returns
    -------
    str
        An ``<svg>``, whose text and axes take on the page's colour.
    """
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": figure.name}):
        canvas, file = _draw(figure), StringIO()
        canvas.savefig(path, dpi=130, facecolor="white")
        canvas.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    text = file.getvalue()
    return text[text.index("<svg") :].replace(_INK, _CURRENT)


def _draw(figure: Figure) -> Canvas:
    panels = figure.panels
    columns = 2 if len(panels) == 4 else min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    canvas = Canvas(
        figsize=(max(6.4, 1.6 + 3.1 * columns), rows * max(map(_height, panels)) + 0.9), layout="constrained"
    )
    # What has the same axis has the same range on it.
    same_x, same_y = len({panel.x for panel in panels}) == 1, isinstance(panels[0], LinePanel)
    axes = [one for row in canvas.subplots(rows, columns, squeeze=False, sharex=same_x, sharey=same_y) for one in row]
    for one in axes[len(panels) :]:
        one.remove()
    for index, (one, panel) in enumerate(zip(axes, panels, strict=False)):
        draw_panel(one, panel, _INK)
        across, up = zip(*map(extent, panels if same_x else [panel]), strict=True)
        scale(one, "x", panel.x, chain(*across))
        if isinstance(panel, LinePanel):
            scale(one, "y", panel.y, chain(*up))
        inner = index % columns and row_labels(panel) and row_labels(panel) == row_labels(panels[0])
        one.tick_params(labelleft=not inner, labelbottom=True)
    canvas.suptitle(figure.title, fontsize=11)
    _add_legend(canvas, axes[: len(panels)], figure)
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
