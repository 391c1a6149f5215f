"""A gradient that is not finite on one rank: what every rank decodes, and what residuals are afterwards."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from hvd_compress import RandomK, Site, ops_for
from tests.parallel.models import (
    Gather,
    Tensors,
    assert_in_sync,
    codec_of,
    compressor,
    every_codec,
    everything,
    loss_of,
    network,
    noise,
    parameters_of,
    scaled_codecs,
    stateful_codecs,
    states,
    without_advice,
    wrap,
)

pytestmark = [pytest.mark.launches(("mpi", 2)), *without_advice]

SHAPES = {"large": (40, 40), "other": (50, 50), "small": (5,)}
SCALE = 1024.0


def gradients(step: int, rank: int) -> dict[str, torch.Tensor]:
    """Return every tensor's gradient on this rank."""
    return {name: noise(shape, step, rank, i) for i, (name, shape) in enumerate(SHAPES.items())}


@stateful_codecs
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_without_a_scaler_the_bad_tensor_keeps_its_residual_on_the_bad_rank(
    hvd: Any, rank: int, gather: Gather, config: str, bad: float
) -> None:
    """F027."""
    compression = compressor(config)
    model = Tensors(SHAPES)
    optimizer = wrap(hvd, model, compression)
    for step in range(10):
        optimizer.zero_grad()
        before = states(compression)
        pushed = gradients(step, rank)
        if step == 4 and rank == 1:
            pushed["large"][3, 7] = bad
        model.push(pushed)
        optimizer.synchronize()
        finite = {name: bool(getattr(model, name).grad.isfinite().all()) for name in SHAPES}
        assert finite == {"large": step != 4, "other": True, "small": True}
        after = states(compression)
        assert all(numpy.isfinite(numpy.frombuffer(state, numpy.float32)).all() for state in after.values())
        if step == 4:
            large = {key for key in after if key.startswith("large:")}
            common = {f"large:{name}" for name in codec_of(config).common_states}
            kept = {key for key in large if after[key] == before[key]}
            if codec_of(config).entangled:
                # All begin anew.
                assert not any(after["large:known"] + after["large:combined"])
            else:
                assert kept == (large if rank == 1 else common)
        else:
            with optimizer.skip_synchronize():
                optimizer.step()
    assert_in_sync(gather, model)


# Horovod's own sums of inf are the transport's.
@pytest.mark.launches(("mpi", 2), ("gloo", 2))
@every_codec
@pytest.mark.parametrize("where", ["large", "small"])
def test_every_rank_sees_that_one_was_not_finite(hvd: Any, rank: int, config: str, where: str) -> None:
    model = Tensors(SHAPES)
    optimizer = wrap(hvd, model, compressor(everything(config)))
    for bad_rank in (0, 1):
        optimizer.zero_grad()
        pushed = gradients(bad_rank, rank)
        if rank == bad_rank:
            pushed[where].view(-1)[2] = float("inf")
        model.push(pushed)
        optimizer.synchronize()
        assert [name for name in SHAPES if not getattr(model, name).grad.isfinite().all()] == [where]


class Scaled:
    """A model trained with a loss scaler, in Horovod's recipe for it."""

    def __init__(self, hvd: Any, config: str, **scaler: Any) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, **scaler)
        self.compression = compressor(config, grad_scaler=self.scaler)
        self.model = Tensors(SHAPES)
        self.optimizer = wrap(hvd, self.model, self.compression)

    def step(self, pushed: dict[str, torch.Tensor]) -> None:
        """Make one step; the scaler may skip it."""
        self.optimizer.zero_grad()
        # The scaler's own multiplication, which also makes it ready for unscale_.
        scale = self.scaler.scale(torch.ones(()))
        if pushed:
            self.model.push(pushed, scale.item())
        self.optimizer.synchronize()
        self.scaler.unscale_(self.optimizer)
        with self.optimizer.skip_synchronize():
            self.scaler.step(self.optimizer)
        self.scaler.update()


def unselected(config: str, step: int) -> int:
    """Return an entry of "large" that random-k does not choose at the step; 0 for other codecs."""
    codec = getattr(codec_of(config), "inner", None)
    if not isinstance(codec, RandomK):
        return 0
    probe = torch.zeros(1600)
    payload, _ = codec.encode(ops_for(probe), probe, {}, Site("large", step))
    return next(entry for entry in range(1600) if entry not in payload.kept.tolist())


@scaled_codecs
@pytest.mark.parametrize("where", ["large", "small"])
def test_with_a_scaler_a_skipped_step_leaves_every_residual_alone(
    hvd: Any, rank: int, gather: Gather, config: str, where: str
) -> None:
    run = Scaled(hvd, config)
    for step in range(8):
        parameters, before = parameters_of(run.model), states(run.compression)
        pushed = gradients(step, rank)
        if step == 4 and rank == 1:
            pushed[where].view(-1)[unselected(config, step) if where == "large" else 2] = float("inf")
        run.step(pushed)
        # Some codecs send so much of a gradient that a residual may stay as it is: parameters tell for sure.
        assert (parameters_of(run.model) == parameters) == (step == 4)
        if step == 4:
            assert states(run.compression) == before
        assert run.scaler.get_scale() == SCALE / (2 if step >= 4 else 1)
    assert_in_sync(gather, run.model)


@pytest.mark.parametrize("config", ["topk:density=0.1", "dgc:density=0.1", "topk:density=0.3,value_dtype=bfloat16"])
@pytest.mark.parametrize("where", ["large", "small"])
@pytest.mark.parametrize("looked", [True, False], ids=["saved", "unsaved"])
def test_training_goes_on_as_if_the_skipped_step_had_never_been(
    hvd: Any, rank: int, gather: Gather, config: str, where: str, looked: bool
) -> None:
    # A scale of a power of two and its halving are exact, so that the two runs must agree in every bit.
    runs = []
    for skipped in (True, False):
        run = Scaled(hvd, config)
        for step in range(8):
            if step in (4, 6) and not skipped:
                continue
            pushed = gradients(step, rank)
            if step in (4, 6) and rank == 1:
                pushed[where].view(-1)[2] = float("nan")
            run.step(pushed)
            if looked:
                run.compression.state_dict()
        assert run.scaler.get_scale() == SCALE / (4 if skipped else 1)
        runs.append(parameters_of(run.model))
        assert_in_sync(gather, run.model)
    assert runs[0] == runs[1]


@scaled_codecs
def test_residuals_follow_a_growing_loss_scale(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    runs = []
    for interval in (2, 1000):
        run = Scaled(hvd, config, growth_interval=interval)
        for step in range(6):
            run.step(gradients(step, rank))
        runs.append(run)
    assert [run.scaler.get_scale() for run in runs] == [8 * SCALE, SCALE]
    # Float16 values are rounded alike at both scales as long as they are neither huge nor tiny.
    grown, steady = ([parameter.detach() for parameter in run.model.parameters()] for run in runs)
    gaps = [(a - b).abs().max().item() / b.abs().max().item() for a, b in zip(grown, steady, strict=True)]
    assert max(gaps) <= (2e-3 if "float16" in config else 0.0)
    assert_in_sync(gather, run.model)


@pytest.mark.parametrize("config", ["topk:density=0.1", "randomk:density=0.1", "qsgd"])
def test_recipe_with_clipping_trains(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    """F029."""
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=20)
    compression = compressor(config, grad_scaler=scaler)
    model = network()
    optimizer = wrap(hvd, model, compression, lr=0.5)
    losses = []
    for step in range(50):
        optimizer.zero_grad()
        loss = loss_of(model, step, rank)
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert compression.stats().steps == 50
    assert compression.stats().tensors["0.weight"].dense_bytes == 50 * 64 * 32 * 4
    assert_in_sync(gather, model)


def test_overflow_in_a_sparse_gradient_leaves_every_residual_alone(hvd: Any, rank: int, gather: Gather) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    compression = compressor("topk:density=0.1", grad_scaler=scaler)
    model = torch.nn.Sequential(torch.nn.Embedding(20, 40, sparse=True), torch.nn.Linear(40, 40))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = wrap(hvd, model, compression)
    for step in range(4):
        optimizer.zero_grad()
        before, parameters = states(compression), parameters_of(model)
        output = model[0](torch.tensor([step, 2]))
        loss = model[1](output.detach()).square().mean() + (output * noise((2, 40), step, rank)).sum()
        if step == 2 and rank == 1:
            loss = loss + output.sum() * float("inf")
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        assert (parameters_of(model) == parameters) == (step == 2)
        assert (states(compression) == before) == (step == 2)
    assert_in_sync(gather, model)


def test_disabled_scaler_changes_nothing(hvd: Any, rank: int) -> None:
    models = []
    for scaler in (None, torch.amp.GradScaler("cpu", enabled=False)):
        model = Tensors(SHAPES)
        optimizer = wrap(hvd, model, compressor("topk:density=0.1", grad_scaler=scaler))
        for step in range(4):
            optimizer.zero_grad()
            model.push(gradients(step, rank))
            optimizer.step()
        models.append(parameters_of(model))
    assert models[0] == models[1]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_steps_after_skipped_ones_are_compressed(hvd: Any, rank: int, gather: Gather, set_to_none: bool) -> None:
    """Horovod's optimizer is not told that a step was skipped, and a new gradient may lie where the last one did."""
    run = Scaled(hvd, "topk:density=0.1", growth_interval=1)
    run.optimizer.zero_grad = lambda: run.model.zero_grad(set_to_none=set_to_none)
    for step in range(20):
        pushed = gradients(step, rank)
        if step % 2 == 0 and rank == 1:
            pushed["other"][3, 7] = float("inf")
        elif rank == 1:
            del pushed["large"]
            # This rank has no backward pass after a skipped step.
            pushed = {} if step % 4 == 3 else pushed
        run.step(pushed)
        assert run.compression.stats().steps == step + 1
        assert run.compression.stats().step.kept_entries >= 160 + 5
    assert_in_sync(gather, run.model)
