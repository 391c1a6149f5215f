"""Bytes that change on the way, and ranks that are out of step: an error that says where, never a silent result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvd_compress import CompressionError
from hvd_compress.torch import sessions
from hvd_compress.torch.collective import HorovodCollective
from tests.parallel import own_launch
from tests.parallel.models import Tensors, compressor, noise, without_advice, wrap

pytestmark = [pytest.mark.launches(("mpi", 2)), *without_advice]


def step(optimizer: Any, model: Tensors, rank: int, number: int = 0) -> None:
    """Make one step with both tensors."""
    optimizer.zero_grad()
    model.push({name: noise(p.shape, number, rank) for name, p in model.named_parameters()})
    optimizer.step()


def pair_of_tensors() -> Tensors:
    """Return a model with one tensor to compress and one that goes dense."""
    return Tensors({"w": (40, 50), "b": (5,)})


@pytest.mark.parametrize("config", ["topk:density=0.1", "cast:dtype=bfloat16", "qsgd:packing=elias", "dgc:density=0.1"])
@pytest.mark.parametrize("byte", [0, 3, 40, -9, -8, -1], ids=str)
def test_flipped_bit_is_found_on_the_rank_that_received_it(
    hvd: Any, rank: int, monkeypatch: pytest.MonkeyPatch, config: str, byte: int
) -> None:
    wait = HorovodCollective.wait

    def damaged(self: HorovodCollective, handle: int) -> torch.Tensor:
        gathered = wait(self, handle)
        gathered[byte] ^= 16
        return gathered

    model = pair_of_tensors()
    optimizer = wrap(hvd, model, compressor(config))
    step(optimizer, model, rank)
    if rank == 1:
        monkeypatch.setattr(HorovodCollective, "wait", damaged)
        with pytest.raises(CompressionError, match=r"^w \(40, 50\) float32: payload"):
            step(optimizer, model, rank, 1)
    else:
        step(optimizer, model, rank, 1)


@pytest.mark.parametrize("config", ["topk:density=0.1", "cast:dtype=bfloat16", "qsgd"])
def test_rank_at_another_step_is_found_by_all(hvd: Any, rank: int, config: str) -> None:
    compression, model = compressor(config), pair_of_tensors()
    optimizer = wrap(hvd, model, compression)
    step(optimizer, model, rank)
    saved = compression.state_dict()
    saved["tensors"]["w"]["step"] += rank
    compression.load_state_dict(saved)
    with pytest.raises(CompressionError, match="the ranks are out of step"):
        step(optimizer, model, rank, 1)


@pytest.mark.parametrize(
    "configs",
    [
        ("topk:density=0.1,value_dtype=float16", "topk:density=0.1,value_dtype=bfloat16"),
        ("topk:density=0.1", "topk:density=0.1,error_feedback=false"),
        ("topk:density=0.1", "topk:density=0.2"),
        ("topk:density=0.1", "qsgd"),
        ("qsgd", "qsgd:packing=elias"),
        ("qsgd:seed=1", "qsgd:seed=2"),
    ],
    ids=" and ".join,
)
def test_rank_with_another_configuration_is_found_by_all(
    hvd: Any, rank: int, monkeypatch: pytest.MonkeyPatch, configs: tuple[str, str]
) -> None:
    # As of a rank that has changed after all agreed.
    monkeypatch.setattr(sessions, "agree", lambda *_: None)
    model = pair_of_tensors()
    optimizer = wrap(hvd, model, compressor(configs[rank]))
    with pytest.raises(CompressionError, match=r"^w .*(settings differ|out of step|damaged)"):
        step(optimizer, model, rank)


def told_of_mismatches() -> list[str]:
    """Return what this rank is told when each rank has a configuration of its own."""
    import horovod.torch as hvd

    hvd.init()
    # As of a rank that has changed after all agreed.
    sessions.agree = lambda *_: None  # type: ignore[assignment]
    said = []
    for number, configs in enumerate(
        [("randomk:density=0.1", "randomk:density=0.2"), ("none", "topk"), ("topk", "randomk:density=0.1")]
    ):
        # What one rank alone has started stays open, so that names must not come again.
        model = Tensors({f"w{number}": (40, 50)})
        optimizer = wrap(hvd, model, compressor(configs[hvd.rank()]))
        try:
            step(optimizer, model, hvd.rank())
        except Exception as error:
            said.append(str(error))
    return said


@pytest.mark.own_launch
def test_horovod_itself_stops_ranks_whose_sums_do_not_fit() -> None:
    for said in own_launch.run(told_of_mismatches, seconds=60):
        assert len(said) == 3
        assert all("Mismatched" in message for message in said)


def test_error_names_the_tensor_whose_shape_has_changed(hvd: Any, rank: int) -> None:
    compression = compressor("topk:density=0.1")
    hvd.allreduce(torch.ones(40, 40), name="tests.shape", compression=compression)
    with pytest.raises(CompressionError, match=r"tests\.shape \(30, 40\) float32: was .*\(40, 40\)"):
        hvd.allreduce(torch.ones(30, 40), name="tests.shape", compression=compression)


def test_saved_state_of_another_codec_is_refused_by_name(hvd: Any, rank: int) -> None:
    first, second = compressor("topk:density=0.1"), compressor("topk:density=0.2")
    model = pair_of_tensors()
    step(wrap(hvd, model, first), model, rank)
    model = pair_of_tensors()
    optimizer = wrap(hvd, model, second)
    second.load_state_dict(first.state_dict())
    with pytest.raises(CompressionError, match=r"^w .*the saved state is for codec .*0\.1.*, this run has .*0\.2"):
        step(optimizer, model, rank)


@pytest.mark.parametrize("saved", [None, {}, {"tensor": {}}, [1]], ids=str)
def test_state_that_is_none_of_ours_is_refused(saved: Any) -> None:
    with pytest.raises(ValueError, match="state_dict must come from a compressor's state_dict"):
        compressor("topk").load_state_dict(saved)
