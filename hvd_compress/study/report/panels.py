"""Draws one panel: a method has the same colour and marker everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

from hvd_compress.registry import codec_names
from hvd_compress.study.report.charts import Axis, BarPanel, DotPanel, Dots, Line, LinePanel, Panel
from hvd_compress.study.report.methods import COUNTED, UNCORRECTED

__all__ = ["draw_panel", "extent", "look_of", "row_labels", "scale"]

# The palette of Okabe and Ito, for all kinds of colour vision; "" stands for the colour of text.
_LOOKS = {
    "none": ("", "."),
    "topk": ("#0072B2", "o"),
    "dgc": ("#E69F00", "s"),
    "qsgd": ("#009E73", "^"),
    "topk_qsgd": ("#CC79A7", "v"),
    "jointsq": ("#D55E00", "D"),
    COUNTED: ("#D55E00", "D"),
    "randomk": ("#56B4E9", "X"),
    UNCORRECTED: ("#56B4E9", "X"),
}
_OTHERS = ("#8B6B3E", "#6A3D9A", "#7F7F7F", "#A50026", "#117733"), "P*<>pdXs"
"""Colours and markers of codecs that no preset has; their numbers have no common divisor, so that 40 look different."""
_DASHES = {COUNTED: ":", UNCORRECTED: "--"}
"""Of a method that looks like another but for its hollow markers."""
_NTH: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (1, 1)), (0, (6, 2, 1, 2, 1, 2)))
_PARTS = ("#B5B5B5", "#6A3D9A", "#B79AD1")
"""Of compute, encode and decode; what comes last is hatched."""


def draw_panel(axes: Axes, panel: Panel, ink: str) -> None:
    """Draw a panel; ``ink`` is the colour of text."""
    axes.set_title(panel.title)
    if isinstance(panel, LinePanel):
        _draw_lines(axes, panel, ink)
    elif isinstance(panel, BarPanel):
        _draw_bars(axes, panel, ink)
    else:
        _draw_dots(axes, panel, ink)
    axes.grid(axis="both" if isinstance(panel, LinePanel) else "x")
    axes.set_axisbelow(True)


def row_labels(panel: Panel) -> list[str]:
    """What is written beside the rows of a panel."""
    return [] if isinstance(panel, LinePanel) else [row.label for row in panel.rows]


def extent(panel: Panel) -> tuple[list[float], list[float]]:
    """What has to find room on the horizontal and on the vertical axis of a panel."""
    if isinstance(panel, BarPanel):
        return [sum(row.parts) for row in panel.rows], []
    level = [panel.level.low, panel.level.high] if panel.level else []
    if isinstance(panel, DotPanel):
        return level + [value for row in panel.rows for value in row.values], []
    values = (value for line in panel.lines for value in (*line.y, *line.low, *line.high))
    return [x for line in panel.lines for x in line.x], [*level, *values]


def look_of(method: str, ink: str) -> tuple[str, str, str]:
    """Colour of a method, its marker, and the colour that fills it; `ink` is the colour of text."""
    others = [name for name in codec_names() if name not in _LOOKS]
    colours, markers = _OTHERS
    nth = others.index(method) if method in others else len(others)
    colour, marker = _LOOKS.get(method, (colours[nth % len(colours)], markers[nth % len(markers)]))
    return colour or ink, marker, "none" if method in _DASHES else colour or ink


def _draw_lines(axes: Axes, panel: LinePanel, ink: str) -> None:
    if panel.level is not None:
        axes.axhspan(panel.level.low, panel.level.high, color=ink, alpha=0.12, linewidth=0)
        axes.axhline(panel.level.value, color=ink, linestyle="--", linewidth=1.2, label=panel.level.label)
    beyond = 0
    for line in panel.lines:
        _draw_line(axes, line, ink, panel.markers)
        for x, y in zip(line.x, line.y, strict=True):
            if panel.markers and panel.y.side(y):
                _draw_beyond(axes, line, x, y, beyond, ink, below=panel.y.side(y) < 0)
                beyond += 1


def _draw_line(axes: Axes, line: Line, ink: str, markers: bool) -> None:
    colour, marker, face = look_of(line.method, ink)
    if not markers:
        width = 1.2 if line.method == "none" else 1.8
        dashes = _NTH[line.nth % len(_NTH)]
        axes.plot(line.x, line.y, color=colour, label=line.label, linestyle=dashes, linewidth=width)
        return
    dashes = _DASHES.get(line.method, "-")
    axes.plot(line.x, line.y, color=colour, label=line.label, marker=marker, linestyle=dashes, markerfacecolor=face)
    if line.low:
        axes.vlines(line.x, line.low, line.high, color=colour)


def _draw_beyond(axes: Axes, line: Line, x: float, y: float, nth: int, ink: str, *, below: bool) -> None:
    """Say at the edge what the value of a point is that lies beyond it."""
    colour, marker, face = look_of(line.method, ink)
    height = 0.95 - 0.08 * nth
    if below:
        height = 1 - height
    edge = axes.get_xaxis_transform()
    axes.plot(x, height, marker=marker, color=colour, markerfacecolor=face, transform=edge)
    axes.text(x, height, f"  {y:.3g}", color=colour, transform=edge, va="center")


def _draw_bars(axes: Axes, panel: BarPanel, ink: str) -> None:
    left = [0.0] * len(panel.rows)
    for index, name in enumerate(panel.parts):
        widths = [row.parts[index] for row in panel.rows]
        style: dict[str, Any] = {"color": _PARTS[index]} if index < len(_PARTS) else {"hatch": "////", "color": "none"}
        axes.barh(range(len(widths)), widths, left=left, height=0.75, edgecolor=ink, linewidth=0.4, label=name, **style)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    _rows(axes, panel)


def _draw_dots(axes: Axes, panel: DotPanel, ink: str) -> None:
    if panel.level is not None:
        axes.axvspan(panel.level.low, panel.level.high, color=ink, alpha=0.12, linewidth=0)
        axes.axvline(panel.level.value, color=ink, linestyle="--", linewidth=1.2, label=panel.level.label)
    for index, row in enumerate(panel.rows):
        _draw_row(axes, index, row, panel.x, ink)
    _rows(axes, panel)


def _draw_row(axes: Axes, index: int, row: Dots, x: Axis, ink: str) -> None:
    colour, marker, face = look_of(row.method, ink)
    within = [value for value in row.values if not x.side(value)]
    axes.scatter(
        within, [index] * len(within), s=22, marker=marker, facecolors=face, edgecolors=colour, alpha=0.6, clip_on=False
    )
    for side, place, align, text in ((1, 0.99, "right", "{} →"), (-1, 0.01, "left", "← {}")):
        beyond = ", ".join(f"{value:.3g}" for value in row.values if x.side(value) == side)
        if beyond:
            edge = axes.get_yaxis_transform()
            axes.text(place, index, text.format(beyond), color=colour, transform=edge, ha=align, va="center")
    if math.isfinite(row.mark) and not x.side(row.mark):
        axes.plot([row.mark] * 2, [index - 0.35, index + 0.35], color=colour, linewidth=2)


def _rows(axes: Axes, panel: BarPanel | DotPanel) -> None:
    axes.set_yticks(range(len(panel.rows)), row_labels(panel))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)


def scale(axes: Axes, which: Literal["x", "y"], axis: Axis, values: Iterable[float]) -> None:
    """Label an axis, and give it limits and ticks that are written as plain numbers, for the values on it."""
    ruler = axes.xaxis if which == "x" else axes.yaxis
    ruler.set_label_text(axis.label)
    low, high = -math.inf if axis.low is None else axis.low, math.inf if axis.high is None else axis.high
    seen = [min(max(value, low), high) for value in values if math.isfinite(value)]
    if axis.log and seen:
        axes.set(**{f"{which}scale": "log"})
        span = max(seen) / min(seen)
        limits = (min(seen) / span**0.05, max(seen) * span**0.05)
        ruler.set_major_locator(_ticks_within(span))
    else:
        seen += [0.0] if axis.zero else []
        margin = 0.05 * (max(seen) - min(seen)) if seen else 0.0
        limits = (min(seen) - margin * (not axis.zero), max(seen) + margin) if seen else (0.0, 0.0)
        ruler.set_major_locator(MaxNLocator(5))
    if limits[0] < limits[1]:
        axes.set(**{f"{which}lim": limits})
    ruler.set_minor_locator(NullLocator())
    ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if axis.ticks:
        positions, labels = zip(*axis.ticks, strict=True)
        ruler.set_ticks(list(positions), list(labels))


def _ticks_within(span: float) -> Locator:
    """Ticks of a logarithmic axis that are neither too few nor too many."""
    if span < 2:
        return MaxNLocator(5, steps=[1, 2, 5, 10])
    subs = (1, 1.5, 2, 3, 5, 7) if span < 20 else (1, 2, 5) if span < 500 else (1,)
    return LogLocator(subs=subs, numticks=12)
