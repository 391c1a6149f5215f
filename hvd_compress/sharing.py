"""The counts by which the tensors of a model share one budget, on their way over the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_compress.budget import BINS, shares
from hvd_compress.codec import Array
from hvd_compress.collective import SummingCollective
from hvd_compress.ops.kernels import Kernels

if TYPE_CHECKING:
    from hvd_compress.slot import Slot

__all__ = ["Sharing"]


class Sharing:
    """Adds up what the ranks count in one step, and gives each tensor its share of the budget before the next."""

    def __init__(self) -> None:
        self._magnitudes: dict[str, Array] = {}
        self._totals: dict[str, Array] = {}
        self._world_size = 1
        self._started: tuple[Any, SummingCollective, Kernels] | None = None

    def count(self, key: str, magnitudes: Array | None) -> None:
        """Note a tensor's magnitudes, if it is time to share the budget anew."""
        if magnitudes is not None:
            self._magnitudes[key] = magnitudes

    def count_total(self, key: str, totals: Array, world_size: int) -> None:
        """Note the sum over the ranks of a tensor's magnitudes, where they are added up one tensor at a time."""
        self._totals[key] = totals
        self._world_size = world_size

    def start(self, ops: Kernels, collective: SummingCollective) -> str | None:
        """Add up what was counted in this step over the ranks, while the step ends.

        Returns the tensor that the exchange is named by; None if there is nothing to add up, or it was started.
        """
        if not self._magnitudes or self._started is not None:
            return None
        keys = sorted(self._magnitudes)
        # Those of some tensors may be in another place.
        counts = [ops.assign(ops.zeros(BINS, "int64"), self._magnitudes[key]) for key in keys]
        # Two sessions have no tensor in common.
        handle = collective.allreduce(ops.concat(counts), f"{keys[0]}.magnitudes")
        self._started = (handle, collective, ops)
        return keys[0]

    def finish(self, slots: Mapping[str, Slot]) -> None:
        """Give the tensors that were counted their budgets."""
        if self._started is not None:
            handle, collective, ops = self._started
            keys = sorted(self._magnitudes)
            summed = collective.wait(handle)
            self._world_size = collective.world_size
            # Elastic training may have lost the sum, on all ranks: they go on with the budgets that they have.
            if summed is not None:
                totals = np.reshape(ops.to_list(summed), (len(keys), -1))
                self._totals = dict(zip(keys, totals, strict=True))
        if self._totals:
            counted = [slots[key] for key in sorted(self._totals)]
            codecs, specs = [slot.codec for slot in counted], [slot.spec for slot in counted]
            counts = np.stack([self._totals[key] for key in sorted(self._totals)])
            for slot, budget in zip(counted, shares(codecs, specs, counts, self._world_size), strict=True):
                slot.budget = budget
        self.clear()

    def clear(self) -> None:
        """Forget what was counted."""
        self._magnitudes, self._totals, self._started = {}, {}, None
