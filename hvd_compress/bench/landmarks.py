"""Selections of the largest magnitudes by themselves, ours and others': what encoding can be compared with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hvd_compress.bench.arrays import Gradients
from hvd_compress.bench.machine import find_torch
from hvd_compress.codecs import TopK
from hvd_compress.codecs._sparse import kept_count

__all__ = ["PREFIX", "Selection", "parse_selection", "selector"]

PREFIX = "select"


class Selection(NamedTuple):
    """Someone's way to find the largest magnitudes, and how many."""

    method: str
    density: float


def parse_selection(text: str) -> Selection:
    """Read ``select:METHOD`` or ``select:METHOD,density=0.001``.

    Raises
    ------
    ValueError
        If it is none, or needs something that is not installed.
    """
    method, _, rest = text.partition(":")[2].partition(",")
    if method not in _SELECTORS:
        raise ValueError(f"{PREFIX}: must be followed by one of {', '.join(_SELECTORS)}, got {text!r}")
    if method == "torch.topk" and find_torch() is None:
        raise ValueError(f"{text} needs torch, which is not installed")
    match = re.fullmatch(r"density=([\d.e+-]+)", rest or f"density={TopK.density}")
    try:
        # The codec knows which densities there are.
        return Selection(method, TopK(density=float(match[1] if match else "")).density)
    except ValueError:
        raise ValueError(f"{PREFIX}:{method} takes density=NUMBER in (0, 1], got {rest!r}") from None


def selector(selection: Selection, gradients: Gradients) -> Callable[[int], Any]:
    """Return what selects from one gradient after another."""
    k, select = kept_count(selection.density, gradients.n), _SELECTORS[selection.method]
    return lambda i: select(gradients, gradients[i], k)


def _ours(gradients: Gradients, x: Any, k: int) -> Any:
    return gradients.ops.largest(x, k)


def _torch_topk(gradients: Gradients, x: Any, k: int) -> Any:
    return find_torch().topk(find_torch().as_tensor(x).abs(), k, sorted=False)


def _numpy_partition(gradients: Gradients, x: Any, k: int) -> Any:
    start = gradients.n - k
    return np.argpartition(np.abs(np.asarray(x)), min(start, gradients.n - 1))[start:]


_SELECTORS: dict[str, Callable[[Gradients, Any, int], Any]] = {
    "largest": _ours,
    "torch.topk": _torch_topk,
    "numpy.partition": _numpy_partition,
}
