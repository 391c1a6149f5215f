"""Saved states of all ranks, taken over by another number of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvd_compress import DGC, DenseMomentum, config_of
from hvd_compress.torch.saving import tensors_for


def saved(rank: int, world_size: int) -> dict[str, Any]:
    """What a rank saved."""
    generator = torch.Generator().manual_seed(rank)
    state = {key: torch.randn(50, generator=generator) for key in ("momentum", "velocity")}
    large = {"step": 3, "codec": config_of(DGC()), "state": state}
    # Momentum that is applied after the reduction is equal on all ranks.
    small = {"step": 3, "codec": config_of(DenseMomentum()), "state": {"momentum": torch.arange(5.0)}}
    return {"tensors": {"w": large, "b": small}, "rank": rank, "world_size": world_size}


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_the_average_of_what_was_not_sent_stays(before: int, after: int) -> None:
    """F074."""
    states = [saved(rank, before) for rank in range(before)]
    taken = [tensors_for(states[::-1], rank, after) for rank in range(after)]
    for key in ("momentum", "velocity"):
        was = torch.stack([state["tensors"]["w"]["state"][key] for state in states]).mean(0)
        now = torch.stack([tensors["w"]["state"][key] for tensors in taken]).mean(0)
        torch.testing.assert_close(now, was)
        if before == after:
            for rank, tensors in enumerate(taken):
                assert torch.equal(tensors["w"]["state"][key], states[rank]["tensors"]["w"]["state"][key])
    assert all(tensors["w"]["step"] == 3 for tensors in taken)
    assert all(torch.equal(tensors["b"]["state"]["momentum"], torch.arange(5.0)) for tensors in taken)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (saved(0, 2), r"must be that of rank 1 of 2, got that of rank 0 of 2; .*list of all ranks' states"),
        (saved(1, 4), r"must be that of rank 1 of 2, got that of rank 1 of 4"),
        ([saved(0, 2)], r"must be the states of all ranks of one job, got .*\[\(0, 2\)\]"),
        ([saved(0, 2), saved(0, 2)], "all ranks of one job"),
        ([saved(0, 2), saved(1, 3)], "all ranks of one job"),
        ([], "all ranks of one job"),
        ({"tensors": {}}, "must come from a compressor's state_dict"),
        ([3], "must come from a compressor's state_dict.., got int"),
    ],
)
def test_states_that_do_not_belong_here_are_refused(states: Any, message: str) -> None:
    """F074."""
    with pytest.raises(ValueError, match=message):
        tensors_for(states, 1, 2)
