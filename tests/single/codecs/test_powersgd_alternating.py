"""PowerSGD by turns: one factor at a step, exactness, the best approximation, residuals, two ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import Codec, ErrorFeedback, TensorSpec, compose
from hvd_compress.codecs import AlternatingPowerSGD, Dense, PowerSGD
from hvd_compress.exchange import receive, send
from tests.cases import SITE, LoopbackCollective, backends, ops_of, to_backend, to_numpy

WIRE = {
    "powersgd_alternating rank=2": (
        "157493bef42853bf74cdddbded0b9bbe1888c8bc46678abd478456ba31a876bb935ed3baaef6813b30ed103cd24f913d"
        "5ab5873d4105a03e514d533e0315583f"
    ),
    "error_feedback (powersgd_alternating rank=1 seed=1234)": (
        "37affd3fff44873f9754103ee71c183f20bcb8bd3e7c5cbfae8792bf0b4b17c0"
    ),
}
Array = np.ndarray[Any, Any]


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def exchange(codec: Codec, gradients: list[Array], states: list[Any], step: int, backend: str = "numpy") -> list[Array]:
    """What every rank gets of their average; states are replaced."""
    ops, world, sent, total = ops_of(backend), len(gradients), [], 0.0
    for rank, gradient in enumerate(gradients):
        x, site = to_backend(backend, gradient), SITE._replace(step=step, rank=rank, world_size=world)
        state = codec.init(ops, TensorSpec(gradient.shape, "float32")) if states[rank] is None else states[rank]
        payload, pending, states[rank] = send(codec, ops, x, state, site, LoopbackCollective())
        sent.append(pending)
        total = total + payload
    results = []
    for rank, pending in enumerate(sent):
        result, states[rank] = receive(ops, total / world, pending, states[rank], LoopbackCollective())
        results.append(to_numpy(result))
    return results


@backends
@pytest.mark.parametrize("rank", [1, 4])
def test_a_matrix_of_rank_1_is_exact_from_the_second_step_on(backend: str, rank: int) -> None:
    """The first Q is random; the first P has the matrix's own column."""
    x, states = noise(60, 1) @ noise(1, 45), [None]
    for step in range(5):
        (result,) = exchange(AlternatingPowerSGD(rank=rank), [x], states, step, backend)
        assert step == 0 or np.abs(result - x).max() < 3e-6 * np.abs(x).max()


@pytest.mark.parametrize("first_step", [0, 1])
def test_it_ends_at_the_best_approximation(first_step: int) -> None:
    x, states = noise(30, 20), [None]
    values = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    for step in range(first_step, 120):
        (result,) = exchange(AlternatingPowerSGD(rank=2), [x], states, step)
    assert np.linalg.norm(x - result) == pytest.approx(np.sqrt((values[2:] ** 2).sum()), rel=1e-3)


def test_a_step_sends_one_factor_and_both_take_what_powersgd_sends() -> None:
    spec = TensorSpec((512, 256, 3, 3), "float32")
    halves = [AlternatingPowerSGD(rank=4).at_step(step).payload_nbytes(spec) for step in range(3)]
    assert halves == [4 * 4 * 512, 4 * 4 * 2304, 4 * 4 * 512]
    assert sum(halves[:2]) == PowerSGD(rank=4).payload_nbytes(spec)


def test_residuals_keep_what_the_average_lacks_and_factors_are_equal() -> None:
    codec, states = ErrorFeedback(AlternatingPowerSGD(rank=2)), [None] * 3
    given, received = np.zeros((24, 36)), np.zeros((24, 36))
    for step in range(6):
        gradients = [noise(24, 36) * (rank + 1) + step for rank in range(3)]
        results = exchange(codec, gradients, states, step)
        assert {result.tobytes() for result in results} == {results[0].tobytes()}
        given, received = given + np.sum(gradients, 0), received + 3 * results[0]
    held = np.sum([state["residual"] for state in states], 0).reshape(24, 36)  # type: ignore[index]
    np.testing.assert_allclose(received + held, given, atol=1e-4 * np.abs(given).max())
    assert np.abs(held).max() > 1
    for name in ("left", "right"):
        factors = [state[name] for state in states]  # type: ignore[index]
        assert all((factor == factors[0]).all() for factor in factors)
        np.testing.assert_allclose(factors[0].T @ factors[0], np.eye(2), atol=1e-5)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("step", [1, 2])
def test_a_rank_that_is_not_finite_leaves_the_factors_as_they_are(bad: float, step: int) -> None:
    codec, states = ErrorFeedback(AlternatingPowerSGD(rank=2)), [None] * 2
    for earlier in range(step):
        exchange(codec, [noise(24, 36)] * 2, states, earlier)
    other = ("right", "left")[1 - step % 2]
    before: list[Any] = [{key: array.copy() for key, array in state.items()} for state in states]  # type: ignore[attr-defined]
    poisoned = noise(24, 36)
    poisoned[3, 5] = bad
    with np.errstate(all="ignore"):
        results = exchange(codec, [poisoned, noise(24, 36)], states, step)
    assert not any(np.isfinite(result).all() for result in results)
    for state, old in zip(states, before, strict=True):
        np.testing.assert_array_equal(state[other], old[other])  # type: ignore[index]
    np.testing.assert_array_equal(states[0]["residual"], before[0]["residual"])  # type: ignore[index]


def test_a_gradient_of_zeros_does_not_end_the_iteration() -> None:
    """F039."""
    zeros, x, states = np.zeros((20, 30), np.float32), noise(20, 1) @ noise(1, 30), [None]
    for step, gradient in enumerate((zeros, x, x, zeros, zeros, x, x)):
        (result,) = exchange(AlternatingPowerSGD(rank=2), [gradient], states, step)
        assert gradient.any() or not result.any()
        if step in (2, 6):
            np.testing.assert_allclose(result, x, atol=1e-5)


@pytest.mark.parametrize(("shape", "dense"), [((5, 4), True), ((64, 32), False), ((1000,), True), ((0, 4), True)])
def test_what_would_not_become_smaller_goes_dense(shape: tuple[int, ...], dense: bool) -> None:
    """F092."""
    policy = compose("powersgd_alternating", rank=2, min_elements=0, min_ndim=0)
    assert (type(policy.for_tensor("w", TensorSpec(shape, "float32"))) is Dense) is dense
