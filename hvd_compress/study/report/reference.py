"""The first study's published results: test perplexities on the Penn Treebank, one seed each (arXiv 2502.07634)."""

from __future__ import annotations

__all__ = ["published_change"]

_SETTINGS = [(method, setting) for method in ("topk", "dgc") for setting in ("0.01", "0.001", "0.0001")]
_SETTINGS += [("qsgd", setting) for setting in ("7bit", "5bit", "3bit")]

# Dense, then as in _SETTINGS.
_PERPLEXITIES = {
    ("lstm-small", 1): (116.40, 110.81, 120.01, 169.62, 109.91, 117.00, 166.21, 115.02, 117.99, 115.72),
    ("lstm-small", 2): (115.11, 114.37, 117.74, 151.73, 111.00, 120.00, 160.59, 118.52, 114.99, 115.13),
    ("lstm-medium", 1): (92.21, 89.60, 93.07, 107.53, 88.50, 91.39, 124.16, 93.11, 91.61, 94.44),
    ("lstm-medium", 2): (91.78, 91.09, 92.37, 107.01, 89.02, 93.69, 129.67, 90.85, 91.33, 91.73),
    ("lstm-medium", 4): (90.61, 90.24, 93.97, 108.78, 90.19, 92.20, 129.01, 91.18, 90.31, 93.63),
    ("lstm-large", 1): (86.43, 86.30, 89.60, 98.58, 85.05, 85.01, 100.81, 87.77, 85.76, 86.54),
}


def published_change(model: str, workers: int, method: str, setting: str) -> float | None:
    """By what share the published perplexity is higher than that of dense training; None where none was published.

    Examples
    --------
    >>> round(published_change("lstm-small", 1, "dgc", "0.01"), 3)
    -0.056
    """
    row = _PERPLEXITIES.get((model, workers))
    if row is None or (method, setting) not in _SETTINGS:
        return None
    return row[1 + _SETTINGS.index((method, setting))] / row[0] - 1
