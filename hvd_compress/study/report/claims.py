"""What the papers lead one to expect, held against the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PERCENT", "PLAIN", "POINTS", "TIMES", "Case", "Claim"]

PERCENT, POINTS, TIMES, PLAIN = "{:+.1f} %", "{:+.1f} points", "{:.2f} times", "{:.4g}"
"""How a figure is written; shares as the first or the second."""


@dataclass(frozen=True)
class Case:
    """One figure that a claim is about.

    Parameters
    ----------
    where : str
        Model, workers, methods.
    value, limit : float
        What was found, and how far it may go; a value that is not a number holds nothing.
    at_most : bool
        Whether the limit is from above.
    unit : str
        A format.
    """

    where: str
    value: float
    limit: float
    at_most: bool = True
    unit: str = PERCENT

    @property
    def room(self) -> float:
        """How far the value is from the limit, on the right side of it."""
        return self.limit - self.value if self.at_most else self.value - self.limit

    @property
    def holds(self) -> bool:
        """Whether the value keeps to the limit."""
        return self.room >= 0

    @property
    def found(self) -> str:
        """The value."""
        return self._written(self.value)

    @property
    def expected(self) -> str:
        """The limit."""
        return f"at {'most' if self.at_most else 'least'} {self._written(self.limit)}"

    @property
    def off_by(self) -> str:
        """By how much the value misses the limit, if it does."""
        if self.holds or not math.isfinite(self.room):
            return ""
        return self._written(-self.room).lstrip("+")

    def _written(self, value: float) -> str:
        if not math.isfinite(value):
            return "diverged"
        # A rounded zero has no sign.
        return self.unit.format(round(100 * value, 1) + 0.0 if self.unit in (PERCENT, POINTS) else value)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper or of its results, and every figure in the records that it is about.

    Parameters
    ----------
    source, statement : str
    cases : sequence of Case
        Empty where nothing of it was measured.
    """

    source: str
    statement: str
    cases: Sequence[Case]

    @property
    def verdict(self) -> str:
        """In a few words."""
        held = sum(case.holds for case in self.cases)
        if not self.cases:
            return "not measured"
        if held == len(self.cases):
            return "holds"
        return f"holds in {held} of {len(self.cases)}" if held else "does not hold"

    @property
    def narrowest(self) -> Case | None:
        """The case that misses its limit by most, or comes closest to it; None where nothing was measured."""
        return min(self.cases, key=lambda case: -math.inf if math.isnan(case.room) else case.room, default=None)
