"""Language models and their text, as a study trains them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hvd_compress.study.data import Corpus, Words, columns
from hvd_compress.study.evaluation import perplexity
from hvd_compress.study.torch_task import Task
from hvd_compress.study.workers import Workers

__all__ = ["LanguageTask"]


class LanguageTask(Task):
    """A language model on a text.

    Parameters
    ----------
    model : nn.Module
        From words and a state to scores and a state; makes its ``initial_state``.
    workers : Workers
    corpus : Corpus
    batch_size, sequence_length : int
        Columns of all ranks together and words of each, in a step.
    """

    def __init__(
        self, model: nn.Module, workers: Workers, corpus: Corpus, batch_size: int, sequence_length: int
    ) -> None:
        super().__init__(model, workers)
        self._corpus, self._length = corpus, sequence_length
        self._words = columns(corpus.train, batch_size, rank=workers.rank, workers=workers.size)
        self.steps_per_epoch = (len(self._words) - 1) // sequence_length
        self._state: Any = None

    def loss(self, step: int) -> Tensor:
        start = step % self.steps_per_epoch * self._length
        if start == 0:
            self._state = self.initial_state(self._words.shape[1])
        tokens = torch.from_numpy(self._words[start : start + self._length + 1])
        scores, state = self.model(tokens[:-1], self._state)
        self._state = tuple(part.detach() for part in state)
        return functional.cross_entropy(scores.flatten(0, 1), tokens[1:].flatten())

    def score(self, part: str) -> float:
        return perplexity(self, self.workers, getattr(self._corpus, part))

    def initial_state(self, columns: int) -> Any:
        """A hidden state of zeros."""
        return self.model.initial_state(columns)  # type: ignore[operator]

    @torch.no_grad()
    def cross_entropy(self, words: Words, state: Any) -> tuple[float, Any]:
        """Sum over words of shape (length + 1, columns) after a hidden state, and the state to carry on."""
        tokens = torch.from_numpy(words)
        self.model.eval()
        scores, state = self.model(tokens[:-1], state)
        self.model.train()
        return functional.cross_entropy(scores.flatten(0, 1), tokens[1:].flatten(), reduction="sum").item(), state
