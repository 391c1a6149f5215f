"""What all ranks together should compute, computed in one process with NumPy: the oracle of the skins' tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_compress.exchange import receive, send, spec_of
from hvd_compress.generator import Site
from hvd_compress.ops import ops_for
from hvd_compress.policy import compose_config
from tests.cases import LoopbackCollective, advance

Array = np.ndarray[Any, Any]


class Reference:
    """The exchange of every rank's gradients, step by step.

    Parameters
    ----------
    config : str
        Of the compressor.
    world : int
        Number of ranks.
    average : bool
        Whether the results are averages or sums.
    """

    def __init__(self, config: str, world: int, average: bool = True) -> None:
        self._policy = compose_config(config)
        self._world = world
        self._average = average
        self._steps: dict[str, int] = {}
        self.states: dict[str, list[Any]] = {}

    def reduce(self, key: str, gradients: Sequence[Array]) -> Array:
        """Return the combined gradient of a tensor at its next step, given every rank's."""
        ops, spec = ops_for(gradients[0]), spec_of(ops_for(gradients[0]), gradients[0])
        codec = self._policy.for_tensor(key, spec)
        step = self._steps.get(key, 0)
        self._steps[key] = step + 1
        states = self.states.setdefault(key, [codec.init(ops, spec) for _ in gradients])
        collective, pending, total = LoopbackCollective(), [], 0.0
        for rank, gradient in enumerate(gradients):
            site = Site(key, step, rank, self._world)
            sent, waiting, states[rank] = send(codec, ops, gradient, states[rank], site, collective)
            pending.append(waiting)
            total = total + sent
        advance(pending)
        reduced = np.asarray(total * total.dtype.type(1 / self._world if self._average else 1.0))
        for rank in range(self._world):
            result, states[rank] = receive(ops, reduced, pending[rank], states[rank], collective)
        return np.asarray(result)
