"""Who is calling a compressor.

Horovod hands over a tensor and nothing else. Name, process set and reduction are on its stack: in the frame of the
optimizer's method, or of ``hvd.allreduce``, that called.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NamedTuple

import horovod.torch as hvd
import torch

from hvd_compress.advice import refuse_reduction

__all__ = ["Caller", "find_caller", "find_optimizer"]

_OPTIMIZER = ("_allreduce_grad_async", "_grouped_allreduce_grad_async")
_CALLS = ("allreduce", "grouped_allreduce")
_DEPTH = 6


class Caller(NamedTuple):
    """What Horovod knows of the tensor that it hands over.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer or None
        Horovod's optimizer; None for ``hvd.allreduce`` and its grouped form.
    parameter : torch.Tensor or None
        The parameter, where the frame holds it.
    name : str
        Of the operation, for calls without an optimizer.
    process_set : horovod.torch.ProcessSet
    in_backward : bool
        Whether a backward pass has just made the gradient, so that it is a new one.
    """

    optimizer: Any
    parameter: torch.Tensor | None
    name: str
    process_set: Any
    in_backward: bool


def find_caller(tensor: torch.Tensor) -> Caller:
    """Describe the call of Horovod's that the current compression belongs to.

    Raises
    ------
    ValueError
        If Horovod is not calling, the operation has no name, or its reduction cannot be compressed.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            break
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if module == "horovod.torch.optimizer" and function in _OPTIMIZER:
            return _optimizer_call(frame)
        if module == "horovod.torch.mpi_ops" and not function.startswith("<"):
            return _plain_call(function, frame.f_locals, tensor)
        frame = frame.f_back
    raise ValueError("compress must be called by Horovod: pass the compressor as compression=")


def find_optimizer() -> Any:
    """Return Horovod's optimizer whose ``synchronize`` is calling, or None."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == "horovod.torch.optimizer" and frame.f_code.co_name == "synchronize":
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def _optimizer_call(frame: FrameType) -> Caller:
    names = frame.f_locals
    optimizer, caller = names["self"], frame.f_back
    # Horovod's optimizer for Adasum has no attribute op.
    refuse_reduction(hvd, getattr(optimizer, "op", hvd.Adasum))
    in_backward = caller is not None and caller.f_code.co_name == "hook"
    return Caller(optimizer, names.get("p"), "", optimizer.process_set, in_backward)


def _plain_call(function: str, names: dict[str, Any], tensor: torch.Tensor) -> Caller:
    if function not in _CALLS:
        raise ValueError(f"hvd.{function} cannot be compressed; allowed: hvd.allreduce, hvd.grouped_allreduce")
    name = names["name"]
    if name is None:
        raise ValueError(f"hvd.{function}: name must be given when a compressor is, because it keys the residual")
    if names["op"] is not None:
        refuse_reduction(hvd, names["op"])
    if function == "grouped_allreduce":
        name = f"{name}.{next(i for i, other in enumerate(names['tensors']) if other is tensor)}"
    return Caller(None, None, name, names["process_set"], False)
