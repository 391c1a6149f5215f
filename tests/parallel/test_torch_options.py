"""Every option of Horovod's optimizer with every codec: what comes out is what NumPy computes for all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.parallel.configs import CODECS
from tests.parallel.models import Gather, Tensors, assert_in_sync, compressor, noise, parameters, without_advice, wrap
from tests.parallel.reference import Reference

pytestmark = [pytest.mark.launches(("mpi", 2)), *without_advice]

SHAPES = {"v": (30, 50), "b": (50,), "w": (40, 50)}
STEPS = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "average": {},
    "sum": {"op": "Sum"},
    "predivide": {"gradient_predivide_factor": 4.0},
    "number of groups": {"groups": 2},
    "listed groups": {"groups": [["w", "v"]]},
    "one group": {"groups": [["w", "b", "v"]]},
    "passes": {"backward_passes_per_step": 3},
}
# What a whole model shares is computed for a whole model: its steps have tests of their own.
alone = parameters({name: config for name, config in CODECS.items() if "scope=model" not in config})


@alone
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_means_what_it_says(
    hvd: Any, rank: int, world: int, gather: Gather, config: str, option: str
) -> None:
    settings, passes = dict(OPTIONS[option]), OPTIONS[option].get("backward_passes_per_step", 1)
    model = Tensors(SHAPES)
    if "op" in settings:
        settings["op"] = getattr(hvd, settings["op"])
    if isinstance(settings.get("groups"), list):
        settings["groups"] = [[getattr(model, name) for name in group] for group in settings["groups"]]
    optimizer = wrap(hvd, model, compressor(config), lr=1.0, **settings)
    reference = Reference(config, world, average=option != "sum")
    expected = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(passes):
            model.push({name: noise(shape, step, rank, part) for name, shape in SHAPES.items()})
        optimizer.step()
        for name, shape in SHAPES.items():
            gradients = [sum(noise(shape, step, r, part) for part in range(passes)) for r in range(world)]
            expected[name] -= reference.reduce(name, [np.asarray(gradient) for gradient in gradients])
    # Sums in 16 bits are rounded in another order.
    near = 3e-2 if "float16" in config else 1e-4
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), torch.from_numpy(expected[name]), atol=near, rtol=0)
    assert_in_sync(gather, model)


@alone
def test_every_codec_works_for_calls_by_name(hvd: Any, rank: int, world: int, gather: Gather, config: str) -> None:
    compression, reference = compressor(config), Reference(config, world)
    near = 3e-2 if "float16" in config else 1e-4
    for step in range(STEPS):
        mine = hvd.allreduce(noise((40, 50), step, rank), name="call", compression=compression)
        expected = reference.reduce("call/call", [noise((40, 50), step, r).numpy() for r in range(world)])
        torch.testing.assert_close(mine, torch.from_numpy(expected), atol=near, rtol=0)
        pair = [noise((40, 50), step, rank, i) for i in range(2)]
        grouped = hvd.grouped_allreduce(pair, name="group", compression=compression)
        for i, combined in enumerate(grouped):
            given = [noise((40, 50), step, r, i).numpy() for r in range(world)]
            expected = reference.reduce(f"call/group.{i}", given)
            torch.testing.assert_close(combined, torch.from_numpy(expected), atol=near, rtol=0)
    assert len(set(gather(mine.numpy().tobytes()))) == 1


@alone
def test_compressed_and_other_optimizers_go_together(
    hvd: Any, rank: int, world: int, gather: Gather, config: str
) -> None:
    models = [Tensors(SHAPES) for _ in range(3)]
    compressions = [compressor(config), hvd.Compression.none, hvd.Compression.fp16]
    optimizers = []
    for i, (model, compression) in enumerate(zip(models, compressions, strict=True)):
        named = [(f"{i}.{name}", parameter) for name, parameter in model.named_parameters()]
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizers.append(hvd.DistributedOptimizer(plain, named_parameters=named, compression=compression))
    for step in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model.push({name: noise(shape, step, rank) for name, shape in SHAPES.items()})
        for optimizer in optimizers:
            optimizer.step()
    assert_in_sync(gather, *models)
    torch.testing.assert_close(models[1].w, models[2].w, atol=3e-2, rtol=0)


@pytest.mark.filterwarnings("error")
def test_learning_rates_and_groups_of_parameters_may_change(hvd: Any, rank: int, gather: Gather) -> None:
    model, compression = Tensors(SHAPES), compressor("topk:density=0.1")
    plain = torch.optim.SGD([{"params": [model.w]}, {"params": [model.v, model.b], "lr": 0.5}], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), compression=compression)
    for step in range(STEPS):
        optimizer.zero_grad()
        model.push({name: noise(shape, step, rank) for name, shape in SHAPES.items()})
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.1
    before = model.v.detach().clone()
    optimizer.param_groups[1]["lr"] = 0.0
    model.push({name: noise(shape, 9, rank) for name, shape in SHAPES.items()})
    optimizer.step()
    assert torch.equal(model.v, before)
    assert_in_sync(gather, model)
