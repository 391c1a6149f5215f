"""A compressor as part of ``hvd.elastic.TorchState``: committed, restored and synchronised with the model."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch.elastic.state import StateHandler, get_handler_registry

from hvd_compress.ops import ops_for
from hvd_compress.payload import TensorSpec
from hvd_compress.registry import codec_from_config
from hvd_compress.torch.compressor import Compressor
from hvd_compress.torch.controls import Progress
from hvd_compress.torch.saving import common_states, starts_anew

__all__ = ["CompressorHandler", "register"]


class CompressorHandler(StateHandler):  # type: ignore[misc]
    """What Horovod asks of a part of an elastic state.

    Every worker keeps what it has not sent itself. A new worker begins with nothing unsent; what a lost worker had not
    sent is lost with it. Feedback by EF21 begins anew on all of them if ranks came or went. All else is as rank 0 has
    it: steps, by which all ranks draw the same numbers, changes by ``reconfigure``, shares of a budget, bases, momentum
    that is applied after the reduction.
    """

    def __init__(self, compressor: Compressor) -> None:
        self._size = hvd.size() if hvd.is_initialized() else 0
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
        same = self._same_ranks(told)
        tensors = {key: _filled(saved, mine.tensors.get(key), same) for key, saved in first.tensors.items()}
        self.value.restart(first._replace(tensors=tensors))

    def _same_ranks(self, told: Progress) -> bool:
        """Whether these are the ranks of the last round, all with its state, which then still belongs together."""
        # The order of tensors, in which they were first sent, may differ from rank to rank.
        states = [sorted(saved["state"].items()) for _, saved in sorted(told.tensors.items())]
        common = [array.numpy().tobytes() for state in states for _, array in state]
        mine = self._size, sorted(told.steps.items()), zlib.crc32(b"".join(common))
        everyone = hvd.allgather_object(mine, name="hvd_compress.elastic.ranks")
        self._size = hvd.size()
        return all(theirs == mine for theirs in everyone) and mine[0] == self._size


def _told(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a rank tells the others of a tensor: of its state only what is equal on all of them."""
    return {**saved, "state": {name: array.cpu() for name, array in common_states(saved).items()}}


def _filled(told: Mapping[str, Any], mine: Mapping[str, Any] | None, same_ranks: bool) -> dict[str, Any]:
    """What rank 0 has told, with what this rank has not sent, or with the state before the first step."""
    spec = TensorSpec(tuple(told["shape"]), "float32")
    state = codec_from_config(told["codec"]).init(ops_for(torch.zeros(0)), spec)
    if starts_anew(told) and not same_ranks:
        return {**told, "state": state}
    all_told = told["state"].keys() == state.keys()
    if all_told or mine is None or mine["state"].keys() != state.keys():
        return {**told, "state": {**state, **told["state"]}}
    return {**told, "state": {**mine["state"], **told["state"]}, "loss_scale": mine["loss_scale"]}


def register() -> None:
    """Have ``hvd.elastic.TorchState(compression=compressor, ...)`` know what a compressor is."""
    registry = get_handler_registry()
    if all(kind is not Compressor for kind, _ in registry):
        registry.append((Compressor, CompressorHandler))
