"""Perplexity of a language model, the ranks sharing the work."""

from __future__ import annotations

import math

import horovod.torch as hvd
import torch
from torch import Tensor
from torch.nn import functional

from hvd_compress.study.data import columns
from hvd_compress.study.models import LSTMLanguageModel
from hvd_compress.study.workers import total

# A fixed number of columns makes the figure independent of the number of ranks.
COLUMNS = 32
LENGTH = 35


@torch.no_grad()
def perplexity(model: LSTMLanguageModel, tokens: Tensor) -> float:
    """exp of the mean cross-entropy over a text, the same on all ranks.

    The text is cut into 32 columns, fewer when it is short; the few words that do not fill all columns are left out.
    """
    count = min(COLUMNS, len(tokens) // 2)
    mine = columns(tokens, count, rank=hvd.rank(), workers=hvd.size())
    loss, words = torch.zeros((), dtype=torch.float64), 0
    model.eval()
    if mine.shape[1]:
        state = model.initial_state(mine.shape[1])
        for start in range(0, len(mine) - 1, LENGTH):
            goal = mine[start + 1 : start + 1 + LENGTH]
            scores, state = model(mine[start : start + len(goal)], state)
            loss += functional.cross_entropy(scores.flatten(0, 1), goal.flatten(), reduction="sum").double()
            words += goal.numel()
    model.train()
    sums = total(torch.stack([loss, torch.tensor(float(words), dtype=torch.float64)]), "perplexity")
    mean = float(sums[0] / sums[1])
    return math.exp(mean) if mean < 700 else math.inf
