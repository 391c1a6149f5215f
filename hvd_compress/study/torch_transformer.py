"""Transformers in PyTorch: a language model in the manner of GPT, and the blocks that the vision model shares."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Block", "TransformerLanguageModel"]


class Block(nn.Module):
    """Attention and a feed-forward layer, each after normalisation and beside a way around it.

    Parameters
    ----------
    width, heads : int
        Of the attention.
    feed_forward : int
        Units of the feed-forward layer.
    dropout : float
        Share of units left out, in [0, 1).
    causal : bool
        Whether a position sees only those before it.
    """

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before_attention, self.before_feed_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, feed_forward), nn.GELU(), nn.Linear(feed_forward, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, length, width), in and out."""
        x = x + self.dropout(self._attend(self.before_attention(x)))
        out: Tensor = x + self.dropout(self.feed_forward(self.before_feed_forward(x)))
        return out

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.attention_in(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        out: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class TransformerLanguageModel(nn.Module):
    """Words and their positions in; scores of the next words out, through the matrix of the words.

    Parameters
    ----------
    vocabulary_size : int
        Number of words.
    length : int
        Most words that it sees at once.
    dropout : float
        Share of units left out, in [0, 1).
    """

    def __init__(self, vocabulary_size: int, length: int, dropout: float = 0.0, *, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, 4, 4 * width, dropout, causal=True) for _ in range(2)))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        for parameter in (self.embedding.weight, self.positions):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, words: Tensor, state: tuple[()] = ()) -> tuple[Tensor, tuple[()]]:
        """Scores of the next word, and the state, which there is none of.

        Parameters
        ----------
        words : Tensor
            Word numbers, int64, shape (length, batch).

        Returns
        -------
        tuple
            Scores of shape (length, batch, vocabulary), and ().
        """
        x = self.dropout(self.embedding(words.T) + self.positions[: len(words)])
        x = self.dropout(self.norm(self.blocks(x)))
        return functional.linear(x, self.embedding.weight).transpose(0, 1), state

    def initial_state(self, batch: int) -> tuple[()]:
        """Nothing."""
        return ()
