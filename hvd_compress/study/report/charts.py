"""What a figure shows, as numbers: what the drawing needs, and nothing about how it is drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Axis", "BarPanel", "DotPanel", "Dots", "Figure", "Level", "Line", "LinePanel", "Panel", "Row", "slug"]


@dataclass(frozen=True)
class Axis:
    """An axis: label with unit, the range out of which a value is only written down, and whether zero belongs to it."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    zero: bool = False
    ticks: tuple[tuple[float, str], ...] = ()

    def side(self, value: float) -> int:
        """On which side of the range a value lies: -1 below, 0 within, 1 above."""
        if self.low is not None and value < self.low:
            return -1
        return int(self.high is not None and value > self.high)


@dataclass(frozen=True)
class Line:
    """Points of one method; those that are not finite are left out. ``nth`` tells several lines of it apart."""

    method: str
    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    nth: int = 0


@dataclass(frozen=True)
class Level:
    """A value that the others are compared with, such as that of dense training."""

    label: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LinePanel:
    """Lines over two axes. ``markers``: whether each point is a measurement of its own."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    level: Level | None = None
    markers: bool = True


@dataclass(frozen=True)
class Row:
    """A bar, made of parts."""

    label: str
    parts: tuple[float, ...]


@dataclass(frozen=True)
class BarPanel:
    """Bars that lie one above the other."""

    title: str
    x: Axis
    parts: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Dots:
    """Values of one row; ``mark`` stands out, such as their mean."""

    label: str
    method: str
    values: tuple[float, ...]
    mark: float


@dataclass(frozen=True)
class DotPanel:
    """Rows of dots that lie one above the other."""

    title: str
    x: Axis
    rows: tuple[Dots, ...]
    level: Level | None = None


Panel = LinePanel | BarPanel | DotPanel


@dataclass(frozen=True)
class Figure:
    """Panels beside each other, with what has to be known to read them.

    Parameters
    ----------
    name : str
        Of its file, without the ending.
    title, text : str
    panels : tuple of Panel
        All of one kind.
    shared_legend : bool
        Whether the same lines are in all panels.
    """

    name: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    shared_legend: bool = True


def slug(*words: object) -> str:
    """A name for a file.

    >>> slug("curves", "lstm-small on my text.txt", 2)
    'curves-lstm-small-on-my-text-txt-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", " ".join(map(str, words)).lower()).strip("-")
