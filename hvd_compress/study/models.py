"""Sizes of the language models, the same in every framework."""

from __future__ import annotations

from hvd_compress.study.errors import UsageError

LSTM_SIZES = {"small": 100, "medium": 300, "large": 500}
LAYERS = 2


def hidden_size(size: str) -> int:
    """Number of hidden units of the model called ``small``, ``medium`` or ``large``.

    Raises
    ------
    UsageError
        No such size.
    """
    if size not in LSTM_SIZES:
        raise UsageError(f"size must be one of {', '.join(LSTM_SIZES)}, got {size!r}")
    return LSTM_SIZES[size]
