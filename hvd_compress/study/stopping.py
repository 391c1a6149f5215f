"""When a trial ends."""

from __future__ import annotations

import math

from hvd_compress.study.cells import Direction

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Ends a trial when a streak of looks has brought nothing better than the best before it.

    Parameters
    ----------
    direction : str
        "minimize" or "maximize".
    patience : int
        Length of the streak.

    Attributes
    ----------
    best : float
        The best score; NaN before the first.

    Examples
    --------
    >>> stopping = EarlyStopping("minimize", patience=2)
    >>> [(stopping.improves(score), stopping.ended) for score in (3.0, 4.0, 2.0, 2.0, 2.5)]
    [(True, False), (False, False), (True, False), (False, False), (False, True)]
    """

    def __init__(self, direction: Direction, patience: int) -> None:
        self._sign = 1 if direction == "maximize" else -1
        self._patience, self._streak = patience, 0
        self.best = math.nan

    @property
    def ended(self) -> bool:
        """Whether the streak is as long as patience."""
        return self._streak >= self._patience

    def improves(self, score: float) -> bool:
        """Take the score of a look; whether it is the best so far."""
        if math.isnan(self.best) or self._sign * score > self._sign * self.best:
            self.best, self._streak = score, 0
            return True
        self._streak += 1
        return False
