"""Gradients that are always zero: what they belong to stays where it is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.parallel.configs import CODECS
from tests.parallel.reference import Reference

STEPS, SHAPE = 50, (32, 48)
WITHOUT_ZERO = {"efsignsgd", "onebit"}
"""A sign is all that they send of an entry."""

alone = pytest.mark.parametrize("name", [name for name, config in CODECS.items() if "scope=model" not in config])


@alone
def test_tensors_whose_gradient_is_always_zero_stay(name: str) -> None:
    """F039."""
    reference = Reference(CODECS[name], world=2)
    zeros = np.zeros(SHAPE, np.float32)
    for _ in range(STEPS):
        assert not reference.reduce("w", [zeros, zeros]).any()


@alone
def test_rows_whose_gradient_is_always_zero_stay_or_go_to_and_fro(name: str) -> None:
    """F039: no further than by one step of the largest result, which error feedback then takes back."""
    reference, draws = Reference(CODECS[name], world=2), np.random.default_rng(0)
    moved, largest = np.zeros(SHAPE), 0.0
    for _ in range(STEPS):
        gradients = draws.standard_normal((2, *SHAPE)).astype(np.float32)
        gradients[:, ::2] = 0
        result = reference.reduce("w", list(gradients))
        moved += result
        largest = max(largest, float(np.abs(result).max()))
        assert np.abs(moved[::2]).max() <= (largest if name in WITHOUT_ZERO else 0)
    assert np.abs(moved[1::2]).max() > largest
