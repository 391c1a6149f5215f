"""Saved states of ranks, for the same number of ranks and for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvd_compress.ops import ops_for
from hvd_compress.registry import codec_from_config

__all__ = ["is_own", "tensors_for"]


def tensors_for(saved: Any, rank: int, world_size: int) -> dict[str, Any]:
    """The saved tensors that a rank goes on from.

    Parameters
    ----------
    saved : mapping or list of mapping
        What this rank saved; or what every rank of a job of any size did. Another number of ranks shares out what the
        ranks had not sent, so that their average is what it was.

    Raises
    ------
    ValueError
        If that is no saved state, if one is of another rank, or if all are not those of the ranks of one job.
    """
    of_all = isinstance(saved, list | tuple)
    states = list(saved) if of_all else [saved]
    for state in states:
        if not isinstance(state, Mapping) or not {"tensors", "rank", "world_size"} <= state.keys():
            raise ValueError(f"state_dict must come from a compressor's state_dict(), got {type(state).__name__}")
    places = [(state["rank"], state["world_size"]) for state in states]
    if not of_all:
        if places[0] != (rank, world_size):
            raise ValueError(
                f"state_dict: must be that of rank {rank} of {world_size}, got that of rank {places[0][0]} of "
                f"{places[0][1]}; to go on with another number of ranks, load the list of all ranks' states"
            )
        return dict(states[0]["tensors"])
    if not states or sorted(places) != [(number, len(states)) for number in range(len(states))]:
        raise ValueError(f"state_dict: must be the states of all ranks of one job, got (rank, world_size) {places}")
    by_rank = [state["tensors"] for state in sorted(states, key=lambda state: int(state["rank"]))]
    if len(by_rank) == world_size:
        return dict(by_rank[rank])
    return {key: _share(key, by_rank, rank, world_size) for key in by_rank[0]}


def _share(key: str, by_rank: Sequence[Mapping[str, Any]], rank: int, world_size: int) -> dict[str, Any]:
    """The sum of every world_size-th rank's state, weighted for an average over as many."""
    first = by_rank[0][key]
    if not is_own(first):
        # Equal on all ranks.
        return dict(first)
    mine = [tensors[key]["state"] for tensors in by_rank[rank::world_size]]
    weight = world_size / len(by_rank)
    state = {name: sum((one[name] * weight for one in mine), array * 0) for name, array in first["state"].items()}
    return {**first, "state": state}


def is_own(saved: Mapping[str, Any]) -> bool:
    """Whether a tensor's saved state has what only its rank knows of, such as gradients that were not sent yet."""
    state = saved["state"]
    codec = codec_from_config(saved["codec"]).at_step(saved["step"])
    return bool(state) and codec.keeps_own(ops_for(next(iter(state.values()))), state)
