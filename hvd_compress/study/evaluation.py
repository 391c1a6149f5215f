"""Perplexity of a language model, the ranks sharing the work."""

from __future__ import annotations

import math
from typing import Any, Protocol

from hvd_compress.study.data import Words, columns
from hvd_compress.study.workers import Workers

# A fixed number of columns makes the figure independent of the number of ranks.
COLUMNS = 32
LENGTH = 35


class Predictor(Protocol):
    """What predicts words: a learner of a job, or a trial's model."""

    def initial_state(self, columns: int) -> Any:
        """A hidden state of zeros."""

    def cross_entropy(self, words: Words, state: Any) -> tuple[float, Any]:
        """Sum over words of shape (length + 1, columns) after a hidden state, and the state to carry on."""


def perplexity(predictor: Predictor, workers: Workers, tokens: Words) -> float:
    """exp of the mean cross-entropy over a text, the same on all ranks.

    The text is cut into 32 columns, fewer when it is short; the few words that do not fill all columns are left out.
    """
    count = min(COLUMNS, len(tokens) // 2)
    mine = columns(tokens, count, rank=workers.rank, workers=workers.size)
    loss, words = 0.0, 0
    if mine.shape[1]:
        state = predictor.initial_state(mine.shape[1])
        for start in range(0, len(mine) - 1, LENGTH):
            part = mine[start : start + LENGTH + 1]
            added, state = predictor.cross_entropy(part, state)
            loss, words = loss + added, words + part[1:].size
    all_loss, all_words = workers.total([loss, words], "perplexity")
    mean = all_loss / all_words
    return math.exp(mean) if mean < 700 else math.inf
