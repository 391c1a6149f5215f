"""Cases with numbers that can be followed by hand, and what a user's random numbers must not notice."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from hvd_compress import Reduction
from hvd_compress.torch import Compressor
from tests.parallel.models import (
    Gather,
    Tensors,
    compressor,
    everything,
    feedback_codecs,
    ledger_gap,
    network,
    noise,
    residuals,
    train,
    without_advice,
    wrap,
)
from tests.parallel.reference import Reference

pytestmark = [pytest.mark.launches(("mpi", 2), ("gloo", 2)), *without_advice]


def test_payloads_are_decompressed_before_they_are_added(hvd: Any, rank: int) -> None:
    """F001."""
    model = Tensors({"w": (4,)})
    optimizer = wrap(hvd, model, compressor(everything("topk:density=0.5")), lr=1.0)
    model.push({"w": torch.tensor([[4.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 4.0]][rank])})
    optimizer.synchronize()
    assert model.w.grad.tolist() == [2.0, 0.5, 0.5, 2.0]


@pytest.mark.parametrize(
    ("config", "largest"), [("topk:density=1.0", 1e-6), ("cast:dtype=float16", 1e-3)], ids=["topk", "float16"]
)
def test_predivide_factor_is_applied_once(hvd: Any, rank: int, config: str, largest: float) -> None:
    """F003."""
    models = [network(), network()]
    for model, compression in zip(models, [compressor(everything(config)), hvd.Compression.none], strict=True):
        optimizer = wrap(hvd, model, compression, lr=0.1, gradient_predivide_factor=4.0)
        train(model, optimizer, rank, range(10))
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert max((ours - dense).abs().max().item() for ours, dense in pairs) <= largest
    assert not torch.equal(models[1][0].weight, network()[0].weight)


def test_random_selection_is_shared_and_new_at_every_step(hvd: Any, rank: int, gather: Gather) -> None:
    """F011."""
    compression = compressor("randomk:density=0.1,value_dtype=float32")
    model = Tensors({"w": (64, 32)})
    optimizer = wrap(hvd, model, compression)
    chosen = []
    for step in range(4):
        optimizer.zero_grad()
        model.push({"w": 1 + noise((64, 32), step, rank).abs()})
        optimizer.synchronize()
        assert model.w.grad.shape == (64, 32)
        chosen.append(model.w.grad.reshape(-1).nonzero().reshape(-1).tolist())
        # Gradients are positive, so that a residual is zero where this rank has sent its entry and nowhere else.
        assert chosen[-1] == (residuals(compression)["w"] == 0).nonzero().reshape(-1).tolist()
        assert compression.stats().step.sent_bytes == 205 * 4
    assert [len(indices) for indices in chosen] == [205] * 4
    assert all(theirs == chosen for theirs in gather(chosen))
    assert all(one != other for one, other in itertools.pairwise(chosen))


@pytest.mark.launches(("mpi", 2))
@pytest.mark.parametrize("selection", ["stratified", "uniform", "block"])
def test_unbiased_draws_average_to_the_gradient(hvd: Any, selection: str) -> None:
    """F012."""
    gradient, draws = noise((1000,), 3), 2000
    compression = compressor(everything(f"randomk:density=0.1,mode=unbiased,selection={selection},seed=5"))
    # Draws differ by step and by name, so that many can travel together.
    copies = [gradient.clone() for _ in range(100)]
    total = torch.zeros(1000, dtype=torch.float64)
    for _ in range(draws // len(copies)):
        decoded = hvd.grouped_allreduce(copies, name="tests.unbiased", compression=compression)
        total += torch.stack(decoded).double().sum(0)
    # An entry comes with probability 1/10 and is 10 times as large then: variance 9 g^2.
    errors = (total / draws - gradient).abs() / (3 * gradient.abs() / draws**0.5)
    assert errors.max().item() <= 5
    assert errors.max().item() > 1


def test_random_k_with_feedback_sends_chosen_values_as_they_are(hvd: Any) -> None:
    """F012."""
    gradient = noise((1000,), 3)
    decoded = hvd.allreduce(gradient, name="tests.exact", compression=compressor(everything("randomk:density=0.1")))
    sent = decoded != 0
    assert int(sent.sum()) == 100
    assert torch.equal(decoded[sent], gradient[sent])


@pytest.mark.parametrize(
    "config", ["randomk:density=0.1", "randomk:density=0.3,mode=unbiased", "topk:density=0.1", "qsgd", "topk_qsgd"]
)
def test_users_generators_go_on_as_in_a_dense_run(hvd: Any, rank: int, config: str) -> None:
    """F013."""
    drawn = []
    for compression in (compressor(config), hvd.Compression.none):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        model = Tensors({"a": (64, 64), "b": (64, 64)})
        optimizer = wrap(hvd, model, compression)
        for _ in range(5):
            optimizer.zero_grad()
            model.push({"a": torch.randn(64, 64), "b": torch.randn(64, 64)})
            optimizer.step()
        drawn.append((torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("selection", ["stratified", "uniform", "block"])
def test_parameters_of_equal_length_get_draws_of_their_own(hvd: Any, selection: str) -> None:
    """F013."""
    model = Tensors({"a": (64, 64), "b": (64, 64)})
    optimizer = wrap(hvd, model, compressor(f"randomk:density=0.1,selection={selection}"))
    for _ in range(5):
        optimizer.zero_grad()
        model.push({"a": torch.ones(64, 64), "b": torch.ones(64, 64)})
        optimizer.synchronize()
        assert not torch.equal(model.a.grad != 0, model.b.grad != 0)


@feedback_codecs
def test_what_was_not_sent_comes_with_the_next_gradient(
    hvd: Any, rank: int, world: int, gather: Gather, config: str
) -> None:
    """F015."""
    compression, reference = compressor(config), Reference(config, world)
    model = Tensors({"w": (64, 32)})
    optimizer = wrap(hvd, model, compression)
    before = None
    for step in range(10):
        gradients = [torch.zeros(64, 32) if step == 1 else noise((64, 32), step, other) for other in range(world)]
        optimizer.zero_grad()
        model.push({"w": gradients[rank]})
        optimizer.synchronize()
        expected = torch.from_numpy(reference.reduce("w", [gradient.numpy() for gradient in gradients]))
        assert model.w.grad.abs().max() > 0
        assert torch.allclose(model.w.grad, expected, *closeness(compression))
        after = residuals(compression)["w"]
        gap = ledger_gap(gather, gradients[rank], before, after, model.w.grad)
        assert gap <= max(1e-6, closeness(compression)[0])
        before = after


def closeness(compression: Compressor) -> tuple[float, float]:
    """Return the relative and absolute tolerance: the sum of float16 payloads is rounded, which no residual sees."""
    codec = compression.policy.codec.inner
    halves = codec.reduction is Reduction.SUM and "float16" in repr(codec)
    return (2.0**-10, 2.0**-24) if halves else (1e-6, 1e-9)
