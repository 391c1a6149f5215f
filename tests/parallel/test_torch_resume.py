"""A run that was saved and goes on in new processes is the run that was never interrupted, bit for bit."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import pytest
import torch

from tests.parallel import own_launch
from tests.parallel.models import (
    CODECS,
    Gather,
    Tensors,
    bits,
    codec_of,
    compressor,
    keeps_state,
    network,
    noise,
    parameters_of,
    states,
    train,
    wrap,
)

SHAPES = {"large": (40, 40), "other": (50, 50), "small": (5,)}


class Scenario(NamedTuple):
    """What is trained: an optimizer for each pace, and whether a loss scaler watches."""

    config: str
    paces: tuple[int, ...] = (1,)
    growth_interval: int | None = None


def remembers(config: str) -> bool:
    """Whether a codec keeps something between steps, or draws something that depends on the step."""
    return keeps_state(config) or hasattr(codec_of(config), "seed")


SCENARIOS = {name: Scenario(config) for name, config in CODECS.items() if remembers(config)} | {
    "paces": Scenario("randomk:density=0.1", paces=(1, 2)),
    # The scale grows right after the tenth step, between saving and going on, and within both halves.
    "scaler": Scenario("topk:density=0.1", growth_interval=5),
    "scaler-momentum": Scenario("dgc:density=0.1", growth_interval=2),
    "scaler-paces": Scenario("topk:density=0.1", paces=(1, 2), growth_interval=5),
}


class Training:
    """A run of one scenario on one rank, which can be saved and gone on with."""

    def __init__(self, hvd: Any, scenario: Scenario) -> None:
        scaled = scenario.growth_interval is not None
        self.rank = hvd.rank()
        self.paces = scenario.paces
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=256.0, growth_interval=scenario.growth_interval or 1, enabled=scaled
        )
        self.compression = compressor(scenario.config, grad_scaler=self.scaler if scaled else None)
        self.models = [Tensors(SHAPES) for _ in self.paces]
        self.optimizers = [
            wrap(hvd, model, self.compression, backward_passes_per_step=pace)
            for model, pace in zip(self.models, self.paces, strict=True)
        ]

    def step(self, number: int) -> None:
        """Make one backward pass of each model, and the steps that are due."""
        for model, optimizer, pace in zip(self.models, self.optimizers, self.paces, strict=True):
            gradients = {name: noise(shape, number, self.rank, pace) for name, shape in SHAPES.items()}
            model.push(gradients, self.scaler.scale(torch.ones(())).item())
            if number % pace == pace - 1:
                optimizer.synchronize()
                self.scaler.unscale_(optimizer)
                with optimizer.skip_synchronize():
                    self.scaler.step(optimizer)
                optimizer.zero_grad()
        self.scaler.update()

    def save(self) -> bytes:
        """Return a checkpoint."""
        file = io.BytesIO()
        compression = self.compression.state_dict()
        torch.save([[m.state_dict() for m in self.models], self.scaler.state_dict(), compression], file)
        return file.getvalue()

    def load(self, checkpoint: bytes) -> None:
        """Go on from a checkpoint."""
        # Nothing but tensors and plain data is in it.
        models, scaler, compression = torch.load(io.BytesIO(checkpoint), weights_only=True)
        for model, saved in zip(self.models, models, strict=True):
            model.load_state_dict(saved)
        self.scaler.load_state_dict(scaler)
        self.compression.load_state_dict(compression)

    def bits(self) -> dict[str, bytes]:
        """Return all that must be equal in the end."""
        parameters = {f"{i}:{n}": b for i, model in enumerate(self.models) for n, b in parameters_of(model).items()}
        return {**parameters, **states(self.compression)}


def make_steps(begin: int, end: int, saved: list[dict[str, bytes]] | None) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Train every scenario from step to step; return its checkpoint and its bits."""
    import horovod.torch as hvd

    hvd.init()
    checkpoints, ends = {}, {}
    for name, scenario in SCENARIOS.items():
        training = Training(hvd, scenario)
        if saved is not None:
            training.load(saved[hvd.rank()][name])
        for step in range(begin, end):
            training.step(step)
        checkpoints[name], ends[name] = training.save(), training.bits()
    return checkpoints, ends


@pytest.fixture(scope="module", params=["gloo"])
def halves_and_whole(request: pytest.FixtureRequest) -> tuple[list[Any], list[Any]]:
    """What every rank ends with after 10 steps, new processes and 10 more; and after 20 steps at one go."""
    first = own_launch.run(make_steps, 0, 10, None, launcher=request.param)
    saved = [checkpoints for checkpoints, _ in first]
    second = own_launch.run(make_steps, 10, 20, saved, launcher=request.param)
    whole = own_launch.run(make_steps, 0, 20, None, launcher=request.param)
    return second, whole


@pytest.mark.own_launch
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_resumed_run_equals_the_uninterrupted_one(halves_and_whole: tuple[list[Any], list[Any]], name: str) -> None:
    """F072."""
    for (_, halves), (_, whole) in zip(*halves_and_whole, strict=True):
        assert halves[name] == whole[name]
        assert any(any(value) for value in whole[name].values())


@pytest.mark.own_launch
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_checkpoint_of_a_resumed_run_is_that_of_the_uninterrupted_one(
    halves_and_whole: tuple[list[Any], list[Any]], name: str
) -> None:
    for (halves, _), (whole, _) in zip(*halves_and_whole, strict=True):
        ours, theirs = (torch.load(io.BytesIO(one[name]), weights_only=True)[2]["tensors"] for one in (halves, whole))
        assert {key: {**saved, "state": 0} for key, saved in ours.items()} == {
            key: {**saved, "state": 0} for key, saved in theirs.items()
        }
        for key, saved in ours.items():
            assert {k: bits(v) for k, v in saved["state"].items()} == {
                k: bits(v) for k, v in theirs[key]["state"].items()
            }


@pytest.mark.launches(("mpi", 2))
@pytest.mark.parametrize("config", ["topk:density=0.1", "randomk:density=0.1", "dgc:density=0.1"])
def test_loading_in_place_takes_a_run_back(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    compression, model = compressor(config), network()
    optimizer = wrap(hvd, model, compression)
    train(model, optimizer, rank, range(3))
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}, compression.state_dict()
    ends = []
    for _ in range(2):
        train(model, optimizer, rank, range(3, 6))
        ends.append((parameters_of(model), states(compression)))
        model.load_state_dict(kept[0])
        compression.load_state_dict(kept[1])
    assert ends[0] == ends[1]


@pytest.mark.launches(("mpi", 2))
def test_saved_state_is_a_copy(hvd: Any, rank: int) -> None:
    compression, model = compressor("topk:density=0.1"), network()
    optimizer = wrap(hvd, model, compression)
    train(model, optimizer, rank, range(2))
    saved = compression.state_dict()
    residual = saved["tensors"]["0.weight"]["state"]["residual"]
    kept = residual.clone()
    train(model, optimizer, rank, range(2, 4))
    assert torch.equal(residual, kept)
    compression.load_state_dict(saved)
    train(model, optimizer, rank, range(4, 6))
    assert torch.equal(residual, kept)


@pytest.mark.launches(("mpi", 2))
def test_saved_state_of_an_optimizer_that_is_not_used_yet_is_saved_again(hvd: Any, rank: int) -> None:
    compression = compressor("topk:density=0.1")
    models = [Tensors({"w": (40, 40)}), Tensors({"w": (40, 40)})]
    for model in models:
        optimizer = wrap(hvd, model, compression)
        model.push({"w": noise((40, 40), rank)})
        optimizer.step()
    kept, saved = states(compression), compression.state_dict()
    later = compressor("topk:density=0.1")
    later.load_state_dict(saved)
    assert states(later) == kept
    model = Tensors({"w": (40, 40)})
    optimizer = wrap(hvd, model, later)
    model.push({"w": noise((40, 40), rank)})
    optimizer.step()
    assert set(states(later)) == set(kept)
    assert states(later)["1/w:residual"] == kept["1/w:residual"]
    assert states(later)["w:residual"] != kept["w:residual"]
