"""Array operations of each framework, and the way from an array to them."""

from __future__ import annotations

import sys
from typing import Any

from hvd_compress.ops.base import ArrayOps
from hvd_compress.ops.kernels import Kernels

__all__ = ["ArrayOps", "Kernels", "ops_for"]

_KNOWN: dict[Any, Kernels] = {}


def ops_for(x: Any) -> Kernels:
    """Operations for the framework and device of an array.

    Only frameworks that the program has imported itself are looked at.

    Raises
    ------
    TypeError
        If no known framework owns `x`.
    """
    key = (type(x), getattr(x, "device", None))
    if key not in _KNOWN:
        _KNOWN[key] = _find(x)
    return _KNOWN[key]


def _find(x: Any) -> Kernels:
    if "numpy" in sys.modules:
        from hvd_compress.ops._numpy import numpy_ops

        if numpy_ops.owns(x):
            return numpy_ops
    if "torch" in sys.modules:
        from hvd_compress.ops._torch import torch_ops

        if isinstance(x, sys.modules["torch"].Tensor):
            return torch_ops(x.device)
    if "tensorflow" in sys.modules:
        from hvd_compress.ops._tensorflow import TensorflowOps

        tensorflow_ops = TensorflowOps()
        if tensorflow_ops.owns(x):
            return tensorflow_ops
    kind = f"{type(x).__module__}.{type(x).__name__}"
    raise TypeError(f"expected a NumPy array, a torch tensor or a TensorFlow tensor, got {kind}")
