"""Who is calling a compressor.

Horovod hands over a tensor and nothing else. The variable, the reduction and the process set are on its stack, also
where AutoGraph has rewritten Horovod's functions: their names then begin with ``tf__``, and their code is in nested
functions, but all of them see the same local names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_compress.advice import refuse_reduction

__all__ = ["Caller", "find_caller", "refuse_keras_3", "refuse_xla"]

_HOROVOD = "horovod.tensorflow"
_OURS = "hvd_compress.keras"
_DEPTH = 10
_PASSED = ("tensorflow.", "horovod.", "hvd_compress.", "keras.", "tf_keras.", "contextlib")


class Caller(NamedTuple):
    """What Horovod knows of the tensor that it hands over.

    Attributes
    ----------
    variables, gradients : sequence or None
        All that the optimizer or tape hands over at once; None for ``hvd.allreduce`` and its grouped form.
    position : int
        Of the tensor in them.
    name : str
        Of the operation, for calls without variables.
    process_set : horovod.tensorflow.ProcessSet
    grouped : bool
        Whether the tensor is reduced together with others, which must have its dtype.
    scaling : dict
        The arguments of the reduction, by name.
    settings : dict
        Of the optimizer, where one is calling; else empty.
    scaler : object
        The loss scaler that is calling the optimizer, or None.
    """

    variables: Sequence[Any] | None
    gradients: Sequence[Any]
    position: int
    name: str
    process_set: Any
    grouped: bool
    scaling: dict[str, Any]
    settings: dict[str, Any]
    scaler: Any


def find_caller(tensor: tf.Tensor) -> Caller:
    """Describe the call of Horovod's that the current compression belongs to.

    Raises
    ------
    ValueError
        If Horovod is not calling, the operation has no name, or its reduction cannot be compressed.
    """
    passed = list(_frames())
    frames = [frame for frame in passed if _module(frame).startswith((_HOROVOD, "horovod._keras", _OURS))]
    call = next((frame for frame in frames if _name(frame) in ("allreduce", "grouped_allreduce")), None)
    if call is None:
        raise ValueError("compress must be called by Horovod's allreduce: pass the compressor as compression=")
    grouped = _name(call) == "grouped_allreduce"
    scaling = {key: _local(frames, key) for key in ("op", "prescale_factor", "postscale_factor")}
    refuse_reduction(hvd, scaling["op"])
    process_set, place = _local(frames, "process_set"), _place_in_group(frames, tensor) if grouped else 0
    reducing = next((frame for frame in frames if {"grads", "vars"} <= frame.f_locals.keys()), None)
    if reducing is None:
        name = _local(frames, "name")
        if name is None:
            raise ValueError(
                f"hvd.{_name(call)}: name must be given when a compressor is, because it keys the residual"
            )
        name = f"{name}.{place}" if grouped else name
        return Caller(None, (), 0, name, process_set, grouped, scaling, {}, None)
    # The loops of both ways have their own variable for it.
    position = _local(frames, "index_group")[place] if grouped else _local(_with(frames, "grad"), "i")
    owners = (_settings(frame.f_locals["self"]) for frame in frames if "self" in frame.f_locals)
    settings = next((settings for settings in owners if settings), {})
    variables, gradients = reducing.f_locals["vars"], reducing.f_locals["grads"]
    callers = (frame.f_locals["self"] for frame in _with(passed, "self"))
    scaler = next((caller for caller in callers if type(caller).__name__.startswith("LossScaleOptimizer")), None)
    return Caller(variables, gradients, position, "", process_set, grouped, scaling, settings, scaler)


def refuse_xla() -> None:
    """Raise ``ValueError`` if a function is being traced for XLA, which Horovod's collectives cannot be part of."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = _module(frame)
        traces = module.endswith("eager.polymorphic_function.polymorphic_function")
        if traces and getattr(frame.f_locals.get("self"), "_jit_compile", None):
            raise ValueError("compression does not work in a function of XLA: set jit_compile=False")
        frame = frame.f_back


def refuse_keras_3() -> None:
    """Raise ``ValueError`` if Horovod is wrapping an optimizer of Keras 3, whose gradients it would not reduce."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return
        optimizer = frame.f_locals.get("self")
        if _module(frame) == "horovod._keras" and hasattr(optimizer, "stateless_apply"):
            raise ValueError(
                "horovod's DistributedOptimizer reduces nothing with Keras 3: use hvd_compress.keras."
                "DistributedOptimizer(optimizer, compression=...), or Keras 2 (tf_keras with TF_USE_LEGACY_KERAS=1)"
            )
        frame = frame.f_back


def _frames() -> Iterator[FrameType]:
    """Frames from Horovod's call of the compressor up to the user's code."""
    frame: FrameType | None = sys._getframe(3)
    # Users may wrap compressors in functions of their own.
    for _ in range(_DEPTH):
        if frame is not None and _module(frame) != _HOROVOD:
            frame = frame.f_back
    while frame is not None and _module(frame).startswith(_PASSED):
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _name(frame: FrameType) -> str:
    return frame.f_code.co_name.removeprefix("tf__")


def _with(frames: Sequence[FrameType], name: str) -> list[FrameType]:
    return [frame for frame in frames if name in frame.f_locals]


def _local(frames: Sequence[FrameType], name: str) -> Any:
    """Value of the nearest local variable of that name. AutoGraph fills in a stand-in where there is none yet."""
    values = (frame.f_locals[name] for frame in _with(frames, name))
    return next(value for value in values if type(value).__name__ != "Undefined")


def _place_in_group(frames: Sequence[FrameType], tensor: tf.Tensor) -> int:
    """Position of a tensor among those that a grouped call was given."""
    place = next(i for i, other in enumerate(_local(frames, "tensor_list")) if other is tensor)
    return int(_local(frames, "tensor_list_idx")[place])


def _settings(optimizer: Any) -> dict[str, Any]:
    inner = getattr(optimizer, "_optimizer", getattr(optimizer, "inner_optimizer", optimizer))
    if isinstance(inner, tf.compat.v1.train.Optimizer):
        return {"momentum": getattr(inner, "_momentum", None), "beta_1": getattr(inner, "_beta1", None)}
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return {}
    with tf.init_scope():
        config: dict[str, Any] = getattr(inner, "get_config", dict)()
    return {key: config[key] for key in ("momentum", "beta_1") if isinstance(config.get(key), int | float)}
