"""How good a model is: perplexity and accuracy, and how they scatter over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["SCORES", "Score", "Spread", "spread_of"]


@dataclass(frozen=True)
class Spread:
    """Scores of several seeds.

    Parameters
    ----------
    values : tuple of float
        Of the runs that did not diverge.
    diverged : int
        Number of runs that did.
    """

    values: tuple[float, ...]
    diverged: int = 0

    @property
    def mean(self) -> float:
        """NaN where every run diverged."""
        return fmean(self.values) if self.values else math.nan

    @property
    def sd(self) -> float:
        """Standard deviation; NaN for fewer than two values."""
        return stdev(self.values) if len(self.values) > 1 else math.nan

    @property
    def low(self) -> float:
        """The least value."""
        return min(self.values, default=math.nan)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values, default=math.nan)


def spread_of(values: Iterable[float]) -> Spread:
    """Set the diverged runs apart, whose score is not a finite number."""
    scores = tuple(values)
    finite = tuple(score for score in scores if math.isfinite(score))
    return Spread(finite, len(scores) - len(finite))


@dataclass(frozen=True)
class Score:
    """What a task is judged by.

    Parameters
    ----------
    name : str
    lower_is_better : bool
        Then changes are relative (perplexity); else they are differences (accuracy).
    """

    name: str
    lower_is_better: bool

    def change(self, value: float, dense: float) -> float:
        """By how much a score differs from that of dense training: a share of it, or a difference."""
        return value / dense - 1 if self.lower_is_better else value - dense

    def harm(self, value: float, dense: float) -> float:
        """By how much a score is worse than that of dense training; infinite for one of diverged runs."""
        if math.isnan(value):
            return math.inf
        return self.change(value, dense) if self.lower_is_better else -self.change(value, dense)

    def harm_sd(self, spread: Spread, dense: Spread) -> float:
        """Standard deviation of `harm` over independent seeds of both; NaN if one has a single seed."""
        noise = math.hypot(spread.sd, dense.sd)
        return noise / dense.mean if self.lower_is_better else noise

    def text(self, value: float) -> str:
        """A score as people write it."""
        if math.isnan(value):
            return "diverged"
        return f"{value:.1f}" if self.lower_is_better else f"{100 * value:.1f} %"

    def change_text(self, change: float, sd: float = math.nan) -> str:
        """A change as people write it, its standard deviation behind it."""
        unit = "%" if self.lower_is_better else "points"
        if not math.isfinite(change):
            return "diverged"
        # A rounded zero has no sign.
        return f"{round(100 * change, 1) + 0.0:+.1f} {unit}" + ("" if math.isnan(sd) else f" ± {100 * sd:.1f}")

    def spread_text(self, spread: Spread) -> str:
        """Mean and standard deviation, and how many seeds diverged."""
        text = self.text(spread.mean)
        if not math.isnan(spread.sd):
            text += f" ± {spread.sd:.1f}" if self.lower_is_better else f" ± {100 * spread.sd:.1f}"
        if spread.diverged and spread.values:
            text += f" ({spread.diverged} of {spread.diverged + len(spread.values)} diverged)"
        return text


SCORES = {"lm": Score("perplexity", True), "vision": Score("accuracy", False)}
