"""What the papers lead one to expect, held against the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PERCENT", "PLAIN", "POINTS", "TIMES", "Case", "Claim"]

PERCENT, POINTS, TIMES, PLAIN = "{:+.1%}", "{:+.1f} points", "{:.2f} times", "{:.3g}"
"""How a figure is written."""


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
    def holds(self) -> bool:
        """Whether the value keeps to the limit."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    @property
    def text(self) -> str:
        """The figure, and by how much it misses the limit."""
        expected = f"expected: at {'most' if self.at_most else 'least'} {self._written(self.limit)}"
        missed = abs(self.value - self.limit)
        off = f"; off by {self._written(missed).lstrip('+')}" if not self.holds and math.isfinite(missed) else ""
        return f"{self.where}: {self._written(self.value)} ({expected}{off})"

    def _written(self, value: float) -> str:
        if not math.isfinite(value):
            return "diverged"
        return self.unit.format(100 * value if self.unit == POINTS else value)


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
