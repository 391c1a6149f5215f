"""Models, codecs and checks that the tests of the torch skin share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch

from hvd_compress import Codec, ErrorFeedback, TensorSpec, ops_for
from hvd_compress.policy import compose_config
from hvd_compress.torch import Compressor
from tests.parallel.configs import CODECS

Gather = Callable[[Any], list[Any]]

SMALLEST = TensorSpec((1,), "float32")


def parameters(configs: Mapping[str, str]) -> pytest.MarkDecorator:
    """Return the mark that runs a test once with each config."""
    return pytest.mark.parametrize("config", list(configs.values()), ids=list(configs))


def codec_of(config: str) -> Codec:
    """Return the codec that large tensors get."""
    return compose_config(config).codec


def keeps_state(config: str) -> bool:
    """Return whether the codec that large tensors get keeps something between steps."""
    return bool(codec_of(config).init(ops_for(torch.zeros(1)), SMALLEST))


def learning_rate(config: str) -> float:
    """Return a rate at which `network` learns."""
    return 0.5 if codec_of(config).keeps_scale else 0.005


every_codec = parameters(CODECS)
stateful_codecs = parameters({name: config for name, config in CODECS.items() if keeps_state(config)})
scaled_codecs = parameters({n: c for n, c in CODECS.items() if keeps_state(c) and codec_of(c).keeps_scale})
feedback_codecs = parameters({name: c for name, c in CODECS.items() if isinstance(codec_of(c), ErrorFeedback)})

without_advice = [
    pytest.mark.filterwarnings("ignore:.*than no compression would:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*whose size varies with the data:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*sends float64 gradients:UserWarning"),
]
"""For tests that do on purpose what the compressor warns of: tensors that cost more than dense ones, and float64."""


def compressor(config: str, **own: Any) -> Compressor:
    """Return a compressor; unlike ``Compression.from_config`` also for `none`, which is Horovod's own there."""
    return Compressor(compose_config(config), **own)


def everything(config: str) -> str:
    """Return the config with small tensors compressed too."""
    return f"{config}{',' if ':' in config else ':'}min_elements=0,min_ndim=0"


def wrap(hvd: Any, model: torch.nn.Module, compression: object, lr: float = 0.1, **settings: Any) -> Any:
    """Return Horovod's optimizer around SGD for the model."""
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    return hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), compression=compression, **settings)


class Tensors(torch.nn.Module):
    """A model that is its parameters: `push` gives each of them exactly the gradient that a test wants."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(tuple(shape), dtype=dtype)))

    def push(self, gradients: Mapping[str, torch.Tensor], scale: float = 1.0) -> None:
        """Run a backward pass that gives each named parameter `scale` times the tensor as its gradient."""
        parameters = dict(self.named_parameters())
        losses = [(parameters[name] * gradient).sum() for name, gradient in gradients.items()]
        torch.stack(losses).sum().mul(scale).backward()


def noise(shape: Sequence[int], *seeds: int) -> torch.Tensor:
    """Return normal numbers that depend on the seeds only (a step, a rank, ...) and not on torch's own generator."""
    generator = torch.Generator().manual_seed(sum((seed + 1) * 1009**i for i, seed in enumerate(seeds)))
    return torch.randn(tuple(shape), generator=generator)


def network() -> torch.nn.Sequential:
    """Return a small network whose two weights are compressed and whose biases go dense, equal on all ranks."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(0.2 * noise(parameter.shape, i))
    return model


def loss_of(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    """Return the loss on this rank's batch: the model is to learn a fixed linear map."""
    inputs = noise((16, 32), step, rank)
    targets = inputs @ noise((32, 32), 7) / 6
    dtype = next(model.parameters()).dtype
    return torch.nn.functional.mse_loss(model(inputs.to(dtype)), targets.to(dtype))


def train(model: torch.nn.Module, optimizer: Any, rank: int, steps: Iterable[int]) -> list[float]:
    """Train and return the loss of every step."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step, rank)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def bits(tensor: torch.Tensor) -> bytes:
    """Return the tensor's bytes, so that NaN equals NaN and -0.0 differs from 0.0."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def parameters_of(model: torch.nn.Module) -> dict[str, bytes]:
    """Return the bytes of every parameter."""
    return {name: bits(parameter) for name, parameter in model.named_parameters()}


def assert_in_sync(gather: Gather, *models: torch.nn.Module) -> None:
    """Check that every rank has the same parameters, bit for bit, and that all of them are finite."""
    assert all(bool(parameter.isfinite().all()) for model in models for parameter in model.parameters())
    mine = [parameters_of(model) for model in models]
    assert all(theirs == mine for theirs in gather(mine))


def residuals(compressor: Compressor) -> dict[str, torch.Tensor]:
    """Return this rank's residuals by tensor name; call it between steps."""
    tensors = compressor.state_dict()["tensors"]
    return {name: saved["state"]["residual"] for name, saved in tensors.items() if "residual" in saved["state"]}


def states(compressor: Compressor) -> dict[str, bytes]:
    """Return the bytes of everything that this rank keeps between steps; call it between steps."""
    tensors = compressor.state_dict()["tensors"]
    return {f"{name}:{key}": bits(array) for name, saved in tensors.items() for key, array in saved["state"].items()}


def ledger_gap(gather: Gather, gradient: torch.Tensor, before: Any, after: Any, update: torch.Tensor) -> float:
    """Return how far the mean over ranks of gradient + residual before - residual after is from the update.

    The gap is relative to the largest entry of gradient and residual; a missing residual counts as zeros.
    """
    zeros = torch.zeros(gradient.numel())
    mine = [zeros if tensor is None else tensor.double().reshape(-1) for tensor in (gradient, before, after)]
    everyone = torch.stack([torch.stack([tensor.double() for tensor in ranks]) for ranks in gather(mine)])
    expected = (everyone[:, 0] + everyone[:, 1] - everyone[:, 2]).mean(0)
    largest = everyone[:, :2].abs().sum(1).max().item()
    return (expected - update.double().reshape(-1)).abs().max().item() / max(largest, 1e-30)
