"""The gradients of one size that everything is measured on."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_compress.bench.clocks import clock_of
from hvd_compress.bench.machine import find_torch
from hvd_compress.codec import Array
from hvd_compress.ops import Kernels, ops_for

__all__ = ["GRADIENTS", "Gradients"]

GRADIENTS = 4
"""Different gradients that are compressed in turn: with one alone, what is selected would soon be the same."""


class Gradients:
    """Seeded Gaussian gradients: in a host's memory NumPy's, as which the front ends take them, else torch's.

    Parameters
    ----------
    n : int
        Entries of each, float32.
    device : str
        "cpu", or one of torch's.

    Attributes
    ----------
    arrays : list of arrays, shape (n,)
    result : array, shape (n,)
        What decoding may overwrite.
    ops : Kernels
        The operations for them.
    clock : Clock
        Times what is done with them.
    """

    def __init__(self, n: int, device: str = "cpu") -> None:
        self.n, self.device = n, device
        self.arrays: list[Array] = [self._like(self._draw(seed)) for seed in range(GRADIENTS)]
        self.result: Array = self._like(np.zeros(n, np.float32))
        self.ops: Kernels = ops_for(self.result)
        self.clock = clock_of(device)

    def __getitem__(self, i: int) -> Array:
        return self.arrays[i % GRADIENTS]

    def _draw(self, seed: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(seed).standard_normal(self.n, np.float32)

    def _like(self, values: np.ndarray[Any, Any]) -> Array:
        return values if self.device == "cpu" else find_torch().from_numpy(values).to(self.device)
