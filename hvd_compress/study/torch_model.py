"""The language model in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hvd_compress.study.models import LAYERS, hidden_size

State = tuple[Tensor, Tensor]


class LSTMLanguageModel(nn.Module):
    """Two LSTM layers between an embedding and an output layer that share one matrix.

    With v words and h hidden units it has v·h + 2(8h² + 8h) parameters: the output layer has no bias.

    Parameters
    ----------
    vocabulary_size : int
        Number of words, v.
    hidden_size : int
        Width of embedding and layers, h.
    dropout : float
        Share of units left out after the embedding, between the layers and before the output, in [0, 1).
    """

    def __init__(self, vocabulary_size: int, hidden_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary_size, hidden_size)
        self.lstm = nn.LSTM(hidden_size, hidden_size, LAYERS, dropout=dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Scores of the next word and the state to carry on.

        Parameters
        ----------
        words : Tensor
            Word numbers, int64, shape (length, batch).
        state : tuple of Tensor
            Hidden and cell state, each of shape (2, batch, hidden).

        Returns
        -------
        tuple
            Scores of shape (length, batch, vocabulary), and the new state.
        """
        hidden, state = self.lstm(self.dropout(self.embedding(words)), state)
        return functional.linear(self.dropout(hidden), self.embedding.weight), state

    def initial_state(self, batch: int) -> State:
        """Zeros for ``batch`` columns."""
        zeros = torch.zeros(LAYERS, batch, self.lstm.hidden_size)
        return zeros, zeros.clone()


def build_model(size: str, vocabulary_size: int, dropout: float = 0.0) -> LSTMLanguageModel:
    """The language model called ``small``, ``medium`` or ``large``.

    Raises
    ------
    UsageError
        No such size.
    """
    return LSTMLanguageModel(vocabulary_size, hidden_size(size), dropout)
