"""Saved states of all ranks, taken over by another number of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvd_compress import DGC, EF21, Codec, DenseMomentum, ErrorFeedback, TopK, config_of
from hvd_compress.codecs import PowerSGD
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


def saved_by(codec: Codec, rank: int, **state: torch.Tensor) -> dict[str, Any]:
    """What one of two ranks saved of a tensor."""
    tensor = {"step": 3, "codec": config_of(codec), "state": state}
    return {"tensors": {"w": tensor}, "rank": rank, "world_size": 2}


@pytest.mark.parametrize("after", [1, 3, 4])
def test_what_is_equal_on_all_ranks_is_not_added_up(after: int) -> None:
    """F074."""
    basis = torch.arange(6.0).reshape(3, 2)
    codec = ErrorFeedback(PowerSGD(rank=2))
    states = [saved_by(codec, rank, basis=basis, residual=torch.full((12,), 1.0 + rank)) for rank in range(2)]
    taken = [tensors_for(states, rank, after)["w"]["state"] for rank in range(after)]
    assert all(torch.equal(state["basis"], basis) for state in taken)
    torch.testing.assert_close(torch.stack([state["residual"] for state in taken]).mean(0), torch.full((12,), 1.5))


def test_what_ranks_know_of_each_other_begins_anew_with_other_ranks() -> None:
    """F074."""
    known = [torch.full((12,), 1.0 + rank) for rank in range(2)]
    states = [saved_by(EF21(TopK()), rank, known=known[rank], combined=sum(known) / 2) for rank in range(2)]
    for rank in range(3):
        assert not any(array.any() for array in tensors_for(states, rank, 3)["w"]["state"].values())
    assert torch.equal(tensors_for(states, 1, 2)["w"]["state"]["known"], known[1])
