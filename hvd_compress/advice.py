"""What users should know before they train: a line in the log, warnings, once, and combinations that are refused."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Any

from hvd_compress.codec import Codec, Reduction
from hvd_compress.codecs.none import Dense
from hvd_compress.payload import TensorSpec
from hvd_compress.wire import row_nbytes

__all__ = ["Advice", "refuse_loss_scaler", "refuse_momentum_twice", "refuse_reduction", "say_if_idle"]


class Advice:
    """Warns on rank 0, once each, of a codec that costs more than one would think, and of precision that is lost."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def on(self, codec: Codec, spec: TensorSpec, name: str, rank: int, world_size: int) -> None:
        """Look at the codec of a tensor."""
        if spec.dtype == "float64" and not isinstance(codec, Dense):
            self._warn("dtype", f"{codec!r} sends float64 gradients, such as {name}, as float32 at best", rank)
        if codec.reduction is not Reduction.GATHER:
            return
        if not codec.fixed_size:
            self._warn(
                "cost",
                f"{codec!r} sends payloads whose size varies with the data: Horovod negotiates their sizes anew at "
                "every step, one more round trip for each tensor",
                rank,
            )
        # A ring allreduce moves 2 (W-1)/W times the dense bytes for each rank, an allgather W-1 times the payload.
        elif row_nbytes(codec, spec) * world_size >= 2 * spec.nbytes:
            self._warn("cost", f"{codec!r} sends more for {name} on {world_size} ranks than no compression would", rank)

    def _warn(self, topic: str, message: str, rank: int) -> None:
        if rank == 0 and topic not in self._given:
            warnings.warn(message, stacklevel=6)
        self._given.add(topic)


def say_if_idle(horovod: Any) -> None:
    """Say so in the log if one of Horovod's front ends is initialised with one rank: it calls no compressor then."""
    if horovod.is_initialized() and horovod.size() == 1 and os.environ.get("HOROVOD_ELASTIC", "0") != "1":
        logging.getLogger("hvd_compress").info("compression is idle: this job has one rank, which sends nothing")


def refuse_momentum_twice(codec: Codec, settings: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if both the codec and the optimizer, by its own settings, have momentum."""
    if not codec.has_momentum:
        return
    for name in ("momentum", "betas", "beta_1"):
        if settings.get(name):
            raise ValueError(
                f"{type(codec).__name__} applies momentum itself: set momentum=0 in the optimizer, which has "
                f"{name}={settings[name]}, and nesterov where the codec is made; for optimizers such as Adam use topk"
            )


def refuse_loss_scaler(codec: Codec) -> None:
    """Raise ``ValueError`` if a loss scaler would divide results that do not grow with the loss."""
    if not codec.keeps_scale:
        raise ValueError(f"a loss scaler would divide the signs that {type(codec).__name__} gives: train without one")


def refuse_reduction(horovod: Any, op: Any) -> None:
    """Raise ``ValueError`` unless an operation of one of Horovod's front ends adds or averages."""
    if op not in (horovod.Average, horovod.Sum):
        names = {getattr(horovod, name): name for name in ("Adasum", "Min", "Max", "Product")}
        raise ValueError(f"op must be hvd.Average or hvd.Sum with compression, got hvd.{names.get(op, op)}")
