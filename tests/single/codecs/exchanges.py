"""Exchanges of two phases among the ranks of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_compress import Codec, Site, TensorSpec
from hvd_compress.exchange import receive, send
from tests.cases import LoopbackCollective, advance, ops_of, to_backend, to_numpy

__all__ = ["exchange"]

Array = np.ndarray[Any, Any]


def exchange(
    codec: Codec, gradients: list[Array], states: list[Any], steps: Sequence[int], backend: str = "numpy"
) -> list[Array]:
    """What every rank gets of their average, if each is at its step; states are replaced."""
    ops, collective, sent, world = ops_of(backend), LoopbackCollective(), [], len(gradients)
    for rank, gradient in enumerate(gradients):
        site, x = Site("w", steps[rank], rank, world), to_backend(backend, gradient)
        state = codec.init(ops, TensorSpec(gradient.shape, "float32")) if states[rank] is None else states[rank]
        _, pending, states[rank] = send(codec, ops, x, state, site, collective)
        sent.append(pending)
    advance(sent)
    results = []
    for rank, pending in enumerate(sent):
        one = to_backend(backend, np.ones(1, np.float32))
        result, states[rank] = receive(ops, one, pending, states[rank], collective)
        results.append(to_numpy(result))
    return results
