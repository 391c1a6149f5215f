"""What is special about DGC: the published run, its limits, clipping, warm-up, sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import DGC, DenseMomentum, ErrorFeedback, Site, TensorSpec, TopK, compose
from tests.cases import SITE, backends, ops_of, to_backend, to_numpy


def run(
    codec: Any, gradients: list[Any], backend: str = "numpy", world: int = 1
) -> tuple[list[np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]]]:
    """What was sent at every step, and the last state."""
    ops, spec = ops_of(backend), TensorSpec(np.shape(gradients[0]), "float32")
    state, sent = codec.init(ops, spec), []
    for step, gradient in enumerate(gradients):
        site, now = Site("w", step, 0, world), codec.at_step(step)
        payload, state = now.encode(ops, to_backend(backend, np.array(gradient, np.float32)), state, site)
        sent.append(to_numpy(now.decode(ops, payload, spec, site)))
    return sent, {key: to_numpy(value) for key, value in state.items()}


PUBLISHED = [[1, -0.2, 0.1, 0.3], [0.1, -0.2, 0.4, -0.3], [0, -0.2, 0.1, 0.1]]


@backends
def test_published_run(backend: str) -> None:
    sent, state = run(DGC(density=0.25), PUBLISHED, backend)
    np.testing.assert_allclose(sent, [[1, 0, 0, 0], [0, 0, 0.59, 0], [0, -1.122, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(state["velocity"], [0.19, 0, 0.1, 0.343], atol=1e-6)
    np.testing.assert_allclose(state["momentum"], [0.09, 0, 0.1, 0.073], atol=1e-6)
    assert state["velocity"][1] == state["momentum"][1] == 0


@backends
def test_published_nesterov_run(backend: str) -> None:
    """Nothing is sent there: the sums of what was sent and of the velocity are compared."""
    for steps, momentum, total in (
        (1, [0.9, -0.18, 0.09, 0.27], [1.9, -0.38, 0.19, 0.57]),
        (2, [0.9, -0.342, 0.441, -0.027], [2.9, -0.922, 1.031, 0.243]),
    ):
        sent, state = run(DGC(density=0.25, nesterov=True, masking=False), PUBLISHED[:steps], backend)
        np.testing.assert_allclose(state["momentum"], momentum, atol=1e-6)
        np.testing.assert_allclose(np.sum(sent, axis=0) + state["velocity"], total, atol=1e-6)


def gradients(steps: int, n: int = 200) -> list[np.ndarray[Any, Any]]:
    return list(np.random.default_rng(0).standard_normal((steps, n)).astype(np.float32))


def test_without_momentum_it_is_top_k_with_error_feedback() -> None:
    ops, spec, feedback = ops_of("numpy"), TensorSpec((200,), "float32"), ErrorFeedback(TopK(density=0.05))
    state = feedback.init(ops, spec)
    ours, last = run(DGC(density=0.05, momentum=0.0), gradients(10))
    for step, gradient in enumerate(gradients(10)):
        payload, state = feedback.encode(ops, gradient, state, Site("w", step))
        np.testing.assert_array_equal(ours[step], feedback.decode(ops, payload, spec, Site("w", step)))
    np.testing.assert_array_equal(last["velocity"], state["residual"])


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_masking_nothing_is_lost(nesterov: bool) -> None:
    """Sum of sent + velocity = sum of momentum steps."""
    sent, state = run(DGC(density=0.05, masking=False, nesterov=nesterov), gradients(10))
    momentum, total = np.zeros(200), np.zeros(200)
    for gradient in gradients(10):
        momentum = 0.9 * (momentum + gradient) if nesterov else 0.9 * momentum + gradient
        total += momentum + gradient if nesterov else momentum
    np.testing.assert_allclose(np.sum(sent, axis=0) + state["velocity"], total, atol=1e-4)


@pytest.mark.parametrize("nesterov", [False, True])
def test_density_1_and_small_tensors_are_momentum_sgd(nesterov: bool) -> None:
    """F025: 50 steps equal torch's own SGD with momentum."""
    import torch

    assert DGC(density=1.0, nesterov=nesterov).at_step(0) == DenseMomentum(0.9, nesterov)
    policy = compose("dgc", nesterov=nesterov)
    codec = policy.for_tensor("b", TensorSpec((4,), "float32"))
    assert codec == DenseMomentum(0.9, nesterov)
    ours, theirs = np.ones(4, np.float32), torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([theirs], lr=0.01, momentum=0.9, nesterov=nesterov)
    ops, state = ops_of("numpy"), codec.init(ops_of("numpy"), TensorSpec((4,), "float32"))
    for _ in range(50):
        update, state = codec.absorb(ops, ours * np.float32([1, 2, 3, 4]), state, SITE)
        ours = ours - np.float32(0.01) * update
        optimizer.zero_grad()
        (theirs**2 * torch.tensor([1.0, 2, 3, 4]) / 2).sum().backward()
        optimizer.step()
    np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-5)


def test_dense_momentum_survives_a_reduction_that_is_not_finite() -> None:
    ops, codec = ops_of("numpy"), DenseMomentum()
    state = {"momentum": np.ones(3, np.float32)}
    result, after = codec.absorb(ops, np.float32([1, np.inf, 2]), state, SITE)
    assert after is state
    assert not np.isfinite(result).all()


@backends
@pytest.mark.parametrize("nesterov", [False, True])
def test_what_the_optimizer_gets_is_no_part_of_the_state(backend: str, nesterov: bool) -> None:
    """Clipping changes gradients in place; the momentum must not change with them."""
    ops, codec = ops_of(backend), DenseMomentum(nesterov=nesterov)
    gradient = to_backend(backend, np.ones(3, np.float32))
    update, state = codec.absorb(ops, gradient, codec.init(ops, TensorSpec((3,), "float32")), SITE)
    before = to_numpy(state["momentum"]).copy()
    ops.fill_zero(update)
    np.testing.assert_array_equal(to_numpy(state["momentum"]), before)


@pytest.mark.parametrize("world", [1, 4])
def test_gradients_are_clipped_to_the_workers_share_of_the_norm(world: int) -> None:
    """F026."""
    clipped, _ = run(DGC(density=1 / 2, clip_norm=1.0, momentum=0.0, masking=False), [[30.0, 40.0]], world=world)
    share = 1 / world**0.5
    np.testing.assert_allclose(clipped[0], [0, 0.8 * share], rtol=1e-6)
    small, _ = run(DGC(density=1 / 2, clip_norm=100.0, momentum=0.0), [[30.0, 40.0]], world=world)
    assert small[0].tolist() == [0, 40]


def test_warm_up_keeps_the_published_numbers_of_entries() -> None:
    """F008: 10,000 entries; 2500, 625, 156, 39, then 10."""
    codec = DGC(density=0.001, warmup_steps=4)
    sent, _ = run(codec, gradients(6, 10_000))
    assert [int((step != 0).sum()) for step in sent] == [2500, 625, 156, 39, 10, 10]


def test_warm_up_of_any_list_never_goes_below_the_density() -> None:
    codec = DGC(density=0.05, warmup_steps=9, warmup_densities=[1.0, 0.1, 0.01])
    assert codec.at_step(2) == DenseMomentum()
    assert [codec.at_step(step).density for step in (3, 5, 6, 8, 9, 99)] == [0.1, 0.1, 0.05, 0.05, 0.05, 0.05]


@pytest.mark.parametrize(
    ("densities", "error"),
    [
        ([], ValueError),
        ([0.1, 0.1], ValueError),
        ([0.0], ValueError),
        ("0.1", TypeError),
        ([True], TypeError),
        (0.1, TypeError),
    ],
)
def test_other_warm_up_lists_are_refused(densities: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"DGC: warmup_densities must be a list of falling numbers in \(0, 1\], got"):
        DGC(warmup_densities=densities)


@backends
@pytest.mark.parametrize("kind", ["standard_normal", "laplace", "standard_cauchy"])
@pytest.mark.parametrize(("n", "density"), [(100_000, 0.001), (100_000, 0.01), (500, 0.01)])
def test_sampled_selection_sends_exactly_k_of_the_largest(backend: str, kind: str, n: int, density: float) -> None:
    """The threshold is an estimate, the number of entries is not; all but a few of the k largest are sent."""
    x = getattr(np.random.default_rng(1), kind)(size=n).astype(np.float32)
    ops, codec = ops_of(backend), DGC(density=density, selection="sampled", momentum=0.0)
    payload, _ = codec.encode(ops, to_backend(backend, x), codec.init(ops, TensorSpec((n,), "float32")), Site("w", 3))
    chosen = to_numpy(payload.kept)
    k = codec.counts(TensorSpec((n,), "float32"))[0]
    assert chosen.size == k
    assert (np.diff(chosen) > 0).all()
    largest = np.argsort(-np.abs(x), kind="stable")[:k]
    assert np.isin(largest, chosen).mean() >= 0.8


def test_sampled_selection_differs_by_step_only_through_its_sample() -> None:
    """With all entries in the sample it is exact."""
    exact, _ = run(DGC(density=0.05), gradients(5))
    sampled, _ = run(DGC(density=0.05, selection="sampled", sample_fraction=1.0), gradients(5))
    np.testing.assert_array_equal(exact, sampled)
