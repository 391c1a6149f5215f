"""A compressor as part of ``hvd.elastic.TorchState``: committed, restored and synchronised with the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch.elastic.state import StateHandler, get_handler_registry

from hvd_compress.ops import ops_for
from hvd_compress.payload import TensorSpec
from hvd_compress.registry import codec_from_config
from hvd_compress.torch.compressor import Compressor
from hvd_compress.torch.saving import is_own

__all__ = ["CompressorHandler", "register"]


class CompressorHandler(StateHandler):  # type: ignore[misc]
    """What Horovod asks of a part of an elastic state.

    Every worker keeps what it has not sent, and momentum of its own. A new worker begins with none of it; what a lost
    worker had is lost with it. All else is as rank 0 has it: steps, by which all ranks draw the same numbers, changes
    by ``reconfigure``, shares of a budget, momentum that is applied after the reduction.
    """

    def __init__(self, compressor: Compressor) -> None:
        super().__init__(compressor)
        self.save()

    def save(self) -> None:
        """Keep a copy of the state: at a commit."""
        self._saved = self.value.progress()

    def restore(self) -> None:
        """Go back to the last commit."""
        self.value.restart(self._saved)

    def sync(self) -> None:
        """Agree with the other ranks of a new round."""
        mine = self.value.progress()
        told = mine._replace(tensors={key: _told(saved) for key, saved in mine.tensors.items()})
        first = hvd.broadcast_object(told, root_rank=0, name="hvd_compress.elastic")
        tensors = {key: _filled(saved, mine.tensors.get(key)) for key, saved in first.tensors.items()}
        self.value.restart(first._replace(tensors=tensors))


def _told(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a rank tells the others of a tensor: its state only where that holds nothing of the rank's own."""
    state = None if is_own(saved) else {name: array.cpu() for name, array in saved["state"].items()}
    return {**saved, "state": state}


def _filled(told: Mapping[str, Any], mine: Mapping[str, Any] | None) -> dict[str, Any]:
    """What rank 0 has told, with what this rank has not sent, or with the state before the first step."""
    if told["state"] is not None:
        return dict(told)
    spec = TensorSpec(tuple(told["shape"]), "float32")
    state = codec_from_config(told["codec"]).init(ops_for(torch.zeros(0)), spec)
    if mine is None or mine["state"].keys() != state.keys():
        return {**told, "state": state}
    return {**told, "state": mine["state"], "loss_scale": mine["loss_scale"]}


def register() -> None:
    """Have ``hvd.elastic.TorchState(compression=compressor, ...)`` know what a compressor is."""
    registry = get_handler_registry()
    if all(kind is not Compressor for kind, _ in registry):
        registry.append((Compressor, CompressorHandler))
