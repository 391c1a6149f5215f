"""What holds for every codec: ranks stay equal, training works, odd shapes and missing gradients pass."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch

from hvd_compress.registry import codec_class, codec_names
from tests.parallel.models import (
    Gather,
    Tensors,
    assert_in_sync,
    codec_of,
    compressor,
    every_codec,
    everything,
    learning_rate,
    network,
    noise,
    parameters_of,
    states,
    train,
    without_advice,
    wrap,
)

pytestmark = [pytest.mark.launches(("mpi", 2), ("gloo", 2)), *without_advice]

# Nothing here depends on the transport.
one_launch = pytest.mark.launches(("mpi", 2))


@one_launch
@every_codec
def test_training_works_and_its_second_run_is_identical(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    """F099."""
    runs = []
    for _ in range(2):
        model = network()
        losses = train(model, wrap(hvd, model, compressor(config), lr=learning_rate(config)), rank, range(50))
        assert_in_sync(gather, model)
        runs.append((parameters_of(model), losses))
    assert runs[0] == runs[1]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.mark.launches(("mpi", 4), ("gloo", 4))
@every_codec
def test_four_ranks_stay_equal(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    model = network()
    train(model, wrap(hvd, model, compressor(config), lr=learning_rate(config)), rank, range(5))
    assert_in_sync(gather, model)


@pytest.mark.launches(("mpi", 4))
def test_average_of_large_numbers_does_not_overflow_in_float16(hvd: Any) -> None:
    """F033."""
    x = torch.full((40, 40), 3e4)
    average = hvd.allreduce(x, name="tests.average", compression=compressor("cast:dtype=float16"))
    assert torch.allclose(average, x, rtol=1e-3)
    total = hvd.allreduce(x, name="tests.sum", op=hvd.Sum, compression=compressor("cast:dtype=float16"))
    assert torch.allclose(total, 4 * x, rtol=1e-3)


class Branches(torch.nn.Module):
    """Every rank goes its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = torch.nn.ModuleList([network(), network()])

    def forward(self, inputs: torch.Tensor, way: int) -> torch.Tensor:
        output: torch.Tensor = self.ways[way](inputs)
        return output


@every_codec
def test_ranks_may_take_different_branches(hvd: Any, rank: int, world: int, gather: Gather, config: str) -> None:
    """F048."""
    # Horovod fills in the missing gradients in the order of a set of tensors, which differs from rank to rank.
    assert gather(os.environ["PYTHONHASHSEED"]) == [str(other) for other in range(world)]
    model = Branches()
    optimizer = wrap(hvd, model, compressor(config), lr=0.3)
    start = parameters_of(model)
    for step in range(30):
        optimizer.zero_grad()
        inputs = noise((16, 32), step, rank)
        model(inputs, rank % 2).square().mean().backward()
        optimizer.step()
    assert_in_sync(gather, model)
    assert all(start[name] != now for name, now in parameters_of(model).items())


@one_launch
@every_codec
def test_ranks_may_reach_their_gradients_in_another_order(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    """F049."""
    model = Tensors({f"layer{i}": (40, 30) for i in range(8)})
    optimizer = wrap(hvd, model, compressor(config))
    reached: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: reached.append(name))
    names = [name for name, _ in model.named_parameters()]
    for step in range(30):
        optimizer.zero_grad()
        reached.clear()
        for name in names if rank % 2 else reversed(names):
            model.push({name: noise((40, 30), step, rank, names.index(name))})
        optimizer.step()
    orders = gather(reached)
    assert orders[0] == orders[1][::-1]
    assert_in_sync(gather, model)


@one_launch
@every_codec
def test_zero_gradients_move_nothing(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    """F037."""
    shapes = {"one": (1,), "seven": (7,), "many": (64, 64)}
    compression = compressor(everything(config))
    model = Tensors(shapes)
    optimizer = wrap(hvd, model, compression)
    for _ in range(3):
        optimizer.zero_grad()
        model.push({name: torch.zeros(shape) for name, shape in shapes.items()})
        optimizer.step()
        assert all(parameter.abs().max() == 0 for parameter in model.parameters())
        assert not any(any(state) for state in states(compression).values())
    optimizer.zero_grad()
    model.push({name: 1 + noise(shape, 1).abs() for name, shape in shapes.items()})
    optimizer.step()
    moved = [bool(parameter.abs().max() > 0) for parameter in model.parameters()]
    # Tensors that share one budget need not all get some of it.
    assert any(moved) if "scope=model" in config else all(moved)
    assert_in_sync(gather, model)


@every_codec
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_shape_and_dtype_of_odd_gradients_come_back(
    hvd: Any, rank: int, gather: Gather, config: str, dtype: torch.dtype
) -> None:
    """F053, F055."""
    shapes = {"scale": (), "bias": (1,), "kernel": (1, 1, 1, 1), "large": (32, 33)}
    model = Tensors(shapes, dtype)
    optimizer = wrap(hvd, model, compressor(everything(config)))
    for step in range(2):
        optimizer.zero_grad()
        model.push({name: 1 + noise(shape, step, rank).abs().to(dtype) for name, shape in shapes.items()})
        optimizer.step()
        for name, parameter in model.named_parameters():
            assert parameter.grad.shape == shapes[name]
            assert parameter.grad.dtype == dtype
            assert parameter.grad.abs().max() > 0 or "scope=model" in config
    assert_in_sync(gather, model)


@one_launch
def test_a_float64_model_is_told_once_that_precision_is_lost(hvd: Any, rank: int) -> None:
    """F058."""
    shapes = {"first": (40, 40), "bias": (40,), "second": (40, 40)}
    results = []
    for config in ("topk:density=1.0", "none"):
        model = Tensors(shapes, torch.float64)
        optimizer = wrap(hvd, model, compressor(config))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(3):
                optimizer.zero_grad()
                model.push({name: noise(shape, step, rank).double() / 3 for name, shape in shapes.items()})
                optimizer.step()
        said = [str(warning.message) for warning in caught if "float64" in str(warning.message)]
        assert len(said) == (1 if rank == 0 and config != "none" else 0)
        assert all("such as second, as float32 at best" in message for message in said)
        results.append(list(model.parameters()))
    for ours, dense in zip(*results, strict=True):
        tolerance = 0 if ours.dim() == 1 else 1e-6
        assert (ours - dense).abs().max().item() <= tolerance


@one_launch
@every_codec
def test_parameter_without_entries_does_not_disturb(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    shapes = {"empty": (0, 4), "full": (40, 40)}
    model = Tensors(shapes)
    optimizer = wrap(hvd, model, compressor(everything(config)))
    for step in range(2):
        optimizer.zero_grad()
        model.push({name: noise(shape, step, rank) for name, shape in shapes.items()})
        optimizer.step()
        assert model.empty.grad.shape == (0, 4)
    assert model.full.abs().max() > 0
    assert_in_sync(gather, model)


@one_launch
@every_codec
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_gradients_are_those_of_the_float32_run_rounded_once(
    hvd: Any, rank: int, config: str, dtype: torch.dtype
) -> None:
    """F055, F056."""
    shapes = {"large": (40, 40), "small": (20,)}
    compression = compressor(config)
    half, single = Tensors(shapes, dtype), Tensors(shapes)
    optimizers = [wrap(hvd, half, compression), wrap(hvd, single, compressor(config))]
    for step in range(4):
        gradients = {name: noise(shape, step, rank).to(dtype) for name, shape in shapes.items()}
        for model, optimizer in zip((half, single), optimizers, strict=True):
            optimizer.zero_grad()
            model.push({name: gradient.to(model.large.dtype) for name, gradient in gradients.items()})
            optimizer.synchronize()
        assert half.large.grad.dtype == half.small.grad.dtype == dtype
        if config != "none":
            assert torch.equal(half.large.grad, single.large.grad.to(dtype))
        # Horovod adds float16 itself where nothing is compressed.
        rounding = torch.finfo(dtype).eps
        assert torch.allclose(half.small.grad.float(), single.small.grad, rtol=2 * rounding, atol=2 * rounding)
        with optimizers[0].skip_synchronize():
            optimizers[0].step()
        assert half.large.dtype == dtype
    for saved in compression.state_dict()["tensors"].values():
        assert all(state.dtype == torch.float32 for state in saved["state"].values())


@one_launch
@pytest.mark.parametrize("n", [32767, 32768, 65535, 65536, 65537, 100_000])
@pytest.mark.parametrize("index_codec", ["auto", "u16", "u32"])
def test_last_index_of_a_float16_gradient_is_not_cut(hvd: Any, rank: int, n: int, index_codec: str) -> None:
    """F059."""
    x = torch.zeros(n, dtype=torch.float16)
    x[n - 1] = 2.0 + rank
    compression = compressor(everything(f"topk:density=1e-9,index_codec={index_codec}"))
    result = hvd.allreduce(x, name=f"tests.index.{n}", compression=compression)
    assert result.dtype == torch.float16
    assert result.nonzero().tolist() == [[n - 1]]
    assert result[n - 1].item() == 2.5


@one_launch
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_group_may_mix_compressed_and_dense_half_precision(
    hvd: Any, rank: int, gather: Gather, dtype: torch.dtype
) -> None:
    model = Tensors({"v": (40, 40), "b": (20,), "w": (40, 40)}, dtype)
    optimizer = wrap(hvd, model, compressor("topk:density=1.0"), groups=[list(model.parameters())])
    model.push({name: torch.full_like(p, 1 + rank) for name, p in model.named_parameters()})
    optimizer.synchronize()
    assert all(p.grad.dtype == dtype and p.grad.unique().tolist() == [1.5] for p in model.parameters())


@one_launch
@every_codec
@pytest.mark.parametrize("small", ["dense", "compressed"])
def test_channels_last_gradients_give_what_contiguous_ones_do(
    hvd: Any, rank: int, gather: Gather, config: str, small: str
) -> None:
    """F051."""
    shapes = {"large": (16, 8, 3, 3), "small": (4, 2, 3, 3)}
    models = [Tensors(shapes), Tensors(shapes).to(memory_format=torch.channels_last)]
    for model in models:
        optimizer = wrap(hvd, model, compressor(everything(config) if small == "compressed" else config))
        for step in range(5):
            optimizer.zero_grad()
            model.push({name: noise(shape, step, rank) for name, shape in shapes.items()})
            optimizer.step()
        assert_in_sync(gather, model)
    for plain, last in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert last.is_contiguous(memory_format=torch.channels_last)
        assert not last.is_contiguous()
        assert (plain - last).abs().max().item() <= 1e-6


@one_launch
@every_codec
@pytest.mark.parametrize("groups", ["two", "listed"])
def test_grouped_gradients_reach_their_own_parameters(
    hvd: Any, rank: int, world: int, gather: Gather, config: str, groups: str
) -> None:
    """F065."""
    # Eight times apart, so that no codec's scaling (at most 4) can make one look like another; powers of two, which all
    # codecs send as they are; and none is below the threshold of the codec that has one.
    values, keeps_scale = {f"p{i}": 8.0 ** (i - 2) for i in range(7)}, codec_of(config).keeps_scale
    model = Tensors({name: (40, 40) if i % 2 else (20,) for i, name in enumerate([*values, "unused"])})
    parameters = list(model.parameters())
    settings = {"two": 2, "listed": [parameters[:3], parameters[4:6]]}
    optimizer = wrap(hvd, model, compressor(config), groups=settings[groups])
    for step in range(2):
        optimizer.zero_grad()
        model.push({name: torch.full_like(getattr(model, name), value) for name, value in values.items()})
        optimizer.step()
        assert model.unused.grad.abs().max().item() == 0
        # Later residuals and momentum are in it too. A first factor that is random sends no value as it is.
        for name, value in values.items() if step == 0 and config != "powersgd_alternating" else ():
            arrived = getattr(model, name).grad
            arrived = arrived[arrived != 0]
            assert arrived.numel() > 0
            size = value if keeps_scale else 1.0
            assert 0.99 * size <= arrived.min().item() <= arrived.max().item() <= 4.01 * size
    assert_in_sync(gather, model)


@one_launch
@pytest.mark.parametrize("name", sorted(name for name in codec_names() if not codec_class(name).wrapper))
def test_no_tensor_takes_more_than_its_dense_bytes_and_a_fixed_header_by_default(
    hvd: Any, rank: int, name: str
) -> None:
    """F092."""
    compression = compressor(name)
    shapes = {"a": (10,), "b": (1, 1), "c": (5, 4), "d": (64, 32)}
    model = Tensors(shapes)
    optimizer = wrap(hvd, model, compression)
    model.push({key: torch.ones(shape) for key, shape in shapes.items()})
    optimizer.step()
    tensors = compression.stats().tensors
    assert tensors.keys() == shapes.keys()
    # Header, filling, seal and Horovod's own one-element reduction.
    assert all(counts.sent_bytes <= counts.dense_bytes + 8 + 7 + 8 + 4 for counts in tensors.values())
    assert all(tensors[key].sent_bytes == tensors[key].dense_bytes for key in "abc")
