"""Facts of plain Horovod 0.28.1 that this project stands on: a Horovod that behaves otherwise must be noticed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.parallel import own_launch

pytestmark = pytest.mark.launches(("mpi", 2), ("gloo", 2))


class Recorder:
    """A compressor that changes nothing and remembers what it was given and what it gave back."""

    def __init__(self) -> None:
        self.compressed: list[torch.Tensor] = []
        self.decompressed: list[tuple[torch.Tensor, Any]] = []
        self.returned: list[torch.Tensor] = []

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        self.compressed.append(tensor)
        return tensor.clone(), "context"

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        self.decompressed.append((tensor, ctx))
        self.returned.append(tensor if tensor.is_sparse else tensor.clone())
        return self.returned[-1]


class Placeholder(Recorder):
    """A compressor that lets Horovod reduce a one-element 1.0 and returns nothing else."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return torch.ones(1), tensor.shape

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.expand(ctx).clone()


def wrap(hvd: Any, model: torch.nn.Module, compression: object, **settings: Any) -> Any:
    """Return Horovod's optimizer around SGD for the model."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), compression=compression, **settings)


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters' gradients, all of which there must be."""
    gradients = [parameter.grad for parameter in model.parameters()]
    return [grad for grad in gradients if grad is not None]


def test_compressor_sees_the_gradient_object_and_its_storage_becomes_the_gradient(hvd: Any, rank: int) -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(3, 2, bias=False)])
    recorder = Recorder()
    optimizer = wrap(hvd, model, recorder)
    # Each rank uses one layer only: Horovod compresses a gradient of zeros for the other.
    model[rank](torch.ones(1, 3)).sum().backward()
    optimizer.synchronize()
    gradients = gradients_of(model)
    assert len(recorder.compressed) == 2
    assert sorted(map(id, recorder.compressed)) == sorted(map(id, gradients))
    assert {grad.data_ptr() for grad in gradients} == {tensor.data_ptr() for tensor in recorder.returned}
    assert [grad.tolist() for grad in gradients] == [[[0.5] * 3] * 2] * 2


@pytest.mark.parametrize(
    ("settings", "scale_of"),
    [
        ({"op": "Average"}, lambda world: 1.0),
        ({"op": "Sum"}, lambda world: float(world)),
        ({"op": "Average", "gradient_predivide_factor": 4.0}, lambda world: 1.0),
        ({"op": "Average", "groups": 2}, lambda world: 1.0),
        ({"op": "Average", "backward_passes_per_step": 2}, lambda world: 1.0),
    ],
    ids=["average", "sum", "predivide", "groups", "accumulate"],
)
def test_reduced_one_is_the_scale_that_the_user_asked_for(
    hvd: Any, world: int, settings: dict[str, Any], scale_of: Callable[[int], float]
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = wrap(hvd, model, Placeholder(), **{**settings, "op": getattr(hvd, settings["op"])})
    for _ in range(settings.get("backward_passes_per_step", 1)):
        model(torch.ones(1, 3)).sum().backward()
    optimizer.synchronize()
    assert all((grad == scale_of(world)).all() for grad in gradients_of(model))


def test_gather_of_bytes_started_inside_compress_arrives_in_rank_order(hvd: Any, rank: int, world: int) -> None:
    payloads: list[list[int]] = []

    class Gathering(Placeholder):
        def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
            payload = torch.arange(5, dtype=torch.uint8) + 100 * rank
            handle = hvd.allgather_async(payload, name=f"tests.payload.{tensor.numel()}")
            return torch.ones(1), (tensor.shape, handle)

        def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
            payloads.append(hvd.synchronize(ctx[1]).tolist())
            return super().decompress(tensor, ctx[0])

    model = torch.nn.Linear(3, 2)
    optimizer = wrap(hvd, model, Gathering())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.synchronize()
    assert payloads == [[100 * sender + byte for sender in range(world) for byte in range(5)]] * 2


def test_collectives_are_matched_by_name_and_never_by_order(hvd: Any, rank: int, world: int, gather: Any) -> None:
    names = ["tests.first", "tests.second"] if rank else ["tests.second", "tests.first"]
    values = {"tests.first": 1.0, "tests.second": 2.0}
    early = hvd.allreduce_async(torch.tensor([values[names[0]]]), name=names[0], op=hvd.Sum)
    gather(rank)
    polled = hvd.poll(early)
    # No rank goes on before all have looked.
    gather(rank)
    assert not polled
    late = hvd.allreduce_async(torch.tensor([values[names[1]]]), name=names[1], op=hvd.Sum)
    assert [hvd.synchronize(handle).item() for handle in (early, late)] == [world * values[name] for name in names]


def test_sparse_gradient_passes_compress_by_and_meets_decompress_without_context(hvd: Any) -> None:
    model = torch.nn.Embedding(4, 2, sparse=True)
    recorder = Recorder()
    optimizer = wrap(hvd, model, recorder)
    model(torch.tensor([1])).sum().backward()
    optimizer.synchronize()
    assert recorder.compressed == []
    [(tensor, ctx)] = recorder.decompressed
    assert tensor.is_sparse
    assert ctx is None


def test_bfloat16_cannot_be_reduced_but_its_bytes_can_be_gathered(hvd: Any, world: int) -> None:
    ones = torch.ones(4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="BFloat16Tensor is not supported"):
        hvd.allreduce(ones, name="tests.bfloat16")
    gathered = hvd.allgather(ones.view(torch.uint8), name="tests.bytes")
    assert torch.equal(gathered.view(torch.bfloat16), ones.repeat(world))


def calls_of_compressor() -> int:
    import horovod.torch as hvd

    hvd.init()
    model, recorder = torch.nn.Linear(3, 2), Recorder()
    optimizer = wrap(hvd, model, recorder)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return len(recorder.compressed)


@pytest.mark.own_launch
@pytest.mark.parametrize(("env", "calls"), [({}, 0), ({"HOROVOD_ELASTIC": "1"}, 2)], ids=["plain", "elastic"])
def test_one_rank_calls_the_compressor_only_with_horovod_elastic(env: dict[str, str], calls: int) -> None:
    assert own_launch.run(calls_of_compressor, workers=1, env=env) == [calls]
