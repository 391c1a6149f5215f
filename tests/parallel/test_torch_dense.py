"""Where everything is sent, training is dense training, whatever Horovod is asked to do with the gradients.

Two ranks must agree bit for bit. From four on Horovod adds in an order of its own, which is not ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hvd_compress.torch import DGCSGD
from tests.parallel.models import (
    Gather,
    Tensors,
    assert_in_sync,
    compressor,
    everything,
    loss_of,
    network,
    noise,
    train,
    without_advice,
    wrap,
)

pytestmark = [pytest.mark.launches(("mpi", 2), ("gloo", 2)), *without_advice]

on_four_ranks_too = pytest.mark.launches(("mpi", 2), ("gloo", 2), ("mpi", 4), ("gloo", 4))

FULL = everything("topk:density=1.0")
OF_LARGEST = 1e-6


def assert_equals_dense(world: int, ours: torch.nn.Module, dense: torch.nn.Module) -> None:
    """Check parameters and gradients, bit for bit on two ranks."""
    for (name, mine), theirs in zip(ours.named_parameters(), dense.parameters(), strict=True):
        for what, a, b in (("parameter", mine.detach(), theirs.detach()), ("gradient", mine.grad, theirs.grad)):
            a, b = a.to_dense(), b.to_dense()
            allowed = 0.0 if world == 2 else OF_LARGEST * b.abs().max().item()
            assert (a - b).abs().max().item() <= allowed, f"{what} of {name}"


def pair(hvd: Any, make: Callable[[], torch.nn.Module], config: str, **settings: Any) -> list[tuple[Any, Any]]:
    """Return the same model twice with its optimizer, compressed and dense."""
    models = [make(), make()]
    compressions = [compressor(config), hvd.Compression.none]
    return [(model, wrap(hvd, model, c, **settings)) for model, c in zip(models, compressions, strict=True)]


@on_four_ranks_too
@pytest.mark.parametrize("feedback", ["true", "false"])
@pytest.mark.parametrize("small", ["compressed", "dense"])
def test_top_k_that_sends_everything_equals_dense(
    hvd: Any, rank: int, world: int, gather: Gather, feedback: str, small: str
) -> None:
    config = f"topk:density=1.0,error_feedback={feedback}"
    (ours, optimizer), (dense, plain) = pair(hvd, network, everything(config) if small == "compressed" else config)
    start = [parameter.detach().clone() for parameter in dense.parameters()]
    for step in range(20):
        train(ours, optimizer, rank, [step])
        train(dense, plain, rank, [step])
        if world > 2:
            # Rounding is looked at step by step: over many steps training itself would make it grow.
            assert_equals_dense(world, ours, dense)
            ours.load_state_dict(dense.state_dict())
    assert_equals_dense(world, ours, dense)
    assert_in_sync(gather, ours)
    assert not any(torch.equal(before, after) for before, after in zip(start, dense.parameters(), strict=True))


@on_four_ranks_too
def test_none_equals_horovods_own(hvd: Any, rank: int, world: int) -> None:
    (ours, optimizer), (dense, plain) = pair(hvd, network, "none")
    for step in range(5):
        train(ours, optimizer, rank, [step])
        train(dense, plain, rank, [step])
        assert_equals_dense(world, ours, dense)
        ours.load_state_dict(dense.state_dict())


@on_four_ranks_too
@pytest.mark.parametrize(
    "settings",
    [{"op": "Sum"}, {"gradient_predivide_factor": 4.0}, {"groups": 2}, {"groups": [[0, 1], [2]]}, {"groups": [[3, 0]]}],
    ids=["sum", "predivide", "two-groups", "listed-groups", "mixed-group"],
)
@pytest.mark.parametrize("config", [FULL, "topk:density=1.0"], ids=["all", "large"])
def test_options_of_the_optimizer_mean_what_they_mean_densely(
    hvd: Any, rank: int, world: int, config: str, settings: dict[str, Any]
) -> None:
    def wrapped(compression: object) -> tuple[torch.nn.Module, Any]:
        model, own = network(), dict(settings)
        if "op" in own:
            own["op"] = getattr(hvd, own["op"])
        if isinstance(own.get("groups"), list):
            parameters = list(model.parameters())
            own["groups"] = [[parameters[i] for i in group] for group in own["groups"]]
        return model, wrap(hvd, model, compression, lr=0.05, **own)

    (ours, optimizer), (dense, plain) = wrapped(compressor(config)), wrapped(hvd.Compression.none)
    for step in range(3):
        train(ours, optimizer, rank, [step])
        train(dense, plain, rank, [step])
        assert_equals_dense(world, ours, dense)
        ours.load_state_dict(dense.state_dict())


@pytest.mark.parametrize("passes", [3, 8])
def test_gradients_are_accumulated_before_they_are_compressed(hvd: Any, rank: int, world: int, passes: int) -> None:
    """F041."""
    pairs = pair(hvd, network, FULL, backward_passes_per_step=passes)
    for model, optimizer in pairs:
        for micro in range(20):
            loss_of(model, micro, rank).backward()
            # An epoch of 20 is no multiple: its tail is stepped on all the same.
            if micro % passes == passes - 1 or micro == 19:
                optimizer.step()
                if micro < 19:
                    optimizer.zero_grad()
    assert_equals_dense(world, pairs[0][0], pairs[1][0])


def test_compressor_is_called_once_for_each_step_however_many_passes(hvd: Any, rank: int) -> None:
    """F041."""
    compression = compressor("topk:density=0.1")
    model = network()
    optimizer = wrap(hvd, model, compression, backward_passes_per_step=8)
    for _ in range(2):
        for micro in range(20):
            loss_of(model, micro, rank).backward()
            if micro % 8 == 7 or micro == 19:
                optimizer.step()
                optimizer.zero_grad()
    stats = compression.stats()
    assert stats.steps == 6
    assert stats.tensors["0.weight"].dense_bytes == 6 * 64 * 32 * 4


def test_gradients_can_be_clipped_between_synchronize_and_step(hvd: Any, rank: int, world: int) -> None:
    pairs = pair(hvd, network, FULL)
    norms = []
    for model, optimizer in pairs:
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            optimizer.synchronize()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01).item())
            with optimizer.skip_synchronize():
                optimizer.step()
    assert min(norms) > 0.01
    if world == 2:
        assert_equals_dense(world, pairs[0][0], pairs[1][0])
    assert norms[:3] == pytest.approx(norms[3:], rel=1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_dgc_that_sends_everything_is_momentum_sgd(hvd: Any, rank: int, nesterov: bool, weight_decay: float) -> None:
    """F025, F026."""
    config = f"dgc:density=1.0,momentum=0.9,nesterov={str(nesterov).lower()}"
    ours, dense = network(), network()
    optimizer = DGCSGD(ours.parameters(), lr=0.02, weight_decay=weight_decay, decay_momentum=0.9, nesterov=nesterov)
    named = {"named_parameters": ours.named_parameters(), "compression": compressor(config)}
    train(ours, hvd.DistributedOptimizer(optimizer, **named), rank, range(50))
    sgd = torch.optim.SGD(dense.parameters(), lr=0.02, momentum=0.9, nesterov=nesterov, weight_decay=weight_decay)
    train(dense, hvd.DistributedOptimizer(sgd, named_parameters=dense.named_parameters()), rank, range(50))
    for mine, theirs in zip(ours.parameters(), dense.parameters(), strict=True):
        assert (mine - theirs).abs().max().item() <= 1e-5


def test_dgcsgd_that_makes_a_step_of_a_closure_returns_its_loss() -> None:
    """F026."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    optimizer = DGCSGD([weight], lr=0.25, weight_decay=1.0, decay_momentum=0.5)
    assert optimizer.step(closure).item() == 5.0
    # 1 - (2 + 1) / 4, and then 0.25 - (0.5 + 0.25 + 0.5) / 4
    assert weight.tolist() == [0.25, -0.5]
    optimizer.step(closure)
    assert weight.tolist() == [-0.0625, 0.125]


@pytest.mark.parametrize(("name", "value"), [("lr", -1.0), ("weight_decay", -0.1), ("decay_momentum", 1.0)])
def test_dgcsgd_refuses_settings_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be in \[0, (inf|1)\), got {value}"):
        DGCSGD([torch.nn.Parameter(torch.zeros(1))], **{name: value})


def words(sparse: bool) -> torch.nn.Sequential:
    """Return an embedding large enough to be compressed, and a layer on it."""
    model = torch.nn.Sequential(torch.nn.Embedding(60, 32, sparse=sparse), torch.nn.Linear(32, 32))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(noise(parameter.shape, i))
    return model


def step_on_words(model: torch.nn.Module, optimizers: list[Any], rank: int, step: int) -> None:
    """Train one step in which the ranks look up different rows, some of them twice."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    model(torch.tensor([step, step, 7 + rank, 50 - 10 * rank])).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()


def test_sparse_gradients_are_compressed_as_dense_ones_where_horovod_is_told_to(
    hvd: Any, rank: int, world: int
) -> None:
    compression = compressor(FULL)
    pairs = [
        (model, wrap(hvd, model, c, sparse_as_dense=True))
        for model, c in ((words(True), compression), (words(True), hvd.Compression.none))
    ]
    for step in range(3):
        for model, optimizer in pairs:
            step_on_words(model, [optimizer], rank, step)
        assert_equals_dense(world, pairs[0][0], pairs[1][0])
        pairs[0][0].load_state_dict(pairs[1][0].state_dict())
    assert compression.stats().tensors["0.weight"].dense_bytes == 3 * 60 * 32 * 4


def test_sparse_gradients_pass_by_unchanged(hvd: Any, rank: int, world: int) -> None:
    """F061."""
    compression = compressor(FULL)
    runs = []
    for c in (compression, hvd.Compression.none):
        model = words(True)
        optimizers = [
            hvd.DistributedOptimizer(adam, named_parameters=named, compression=c)
            for adam, named in (
                (torch.optim.SparseAdam(model[0].parameters(), lr=0.1), [("table", model[0].weight)]),
                (torch.optim.SGD(model[1].parameters(), lr=0.1), list(model[1].named_parameters())),
            )
        ]
        for step in range(3):
            step_on_words(model, optimizers, rank, step)
        runs.append(model)
    tables = [model[0].weight for model in runs]
    assert (tables[0] - tables[1]).abs().max().item() <= 1e-6
    assert set(compression.stats().tensors) == {"weight", "bias"}
    assert not torch.equal(tables[1], words(True)[0].weight)


@on_four_ranks_too
def test_missing_gradients_count_as_zeros(hvd: Any, rank: int, world: int) -> None:
    pairs = pair(hvd, lambda: Tensors({"shared": (40, 40), "mine": (40, 40), "nobodys": (40, 40)}), FULL)
    for model, optimizer in pairs:
        for step in range(3):
            optimizer.zero_grad()
            pushed = {"shared": noise((40, 40), step, rank), "mine": noise((40, 40), step)}
            model.push(pushed if rank == 1 else {"shared": pushed["shared"]})
            optimizer.step()
        assert model.mine.abs().max().item() > 0
        assert model.nobodys.abs().max().item() == 0
    assert_equals_dense(world, pairs[0][0], pairs[1][0])


def test_sending_more_than_dense_is_said_once_on_the_first_rank(
    hvd: Any, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("warnings.warn", lambda message, **_: said.append(str(message)))
    model = Tensors({"v": (40, 40), "w": (40, 40)})
    optimizer = wrap(hvd, model, compressor(FULL))
    for _ in range(2):
        optimizer.zero_grad()
        model.push({"v": torch.ones(40, 40), "w": torch.ones(40, 40)})
        optimizer.step()
        assert len(said) == (1 if rank == 0 else 0)
    assert all("than no compression would" in message for message in said)
