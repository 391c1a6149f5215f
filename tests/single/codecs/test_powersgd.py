"""PowerSGD: the published iteration, exactness, warm start, what goes dense, two ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import ErrorFeedback, TensorSpec, compose
from hvd_compress.codecs import Dense, PowerSGD
from hvd_compress.exchange import receive, send
from tests.cases import SITE, LoopbackCollective, advance, backends, concluded, ops_of, to_backend, to_numpy

WIRE = {
    "powersgd rank=2": (
        "b0f105bfdeeed8bf447b49bee1ff1ebfcd2836bd4ccb0dbefcdcc2ba383b02bc170140bb67dd1a3c0da6833ce55f1c3e"
        "d88cf63d432a293f68f1bf3efce7e23f0e448f3fc36056beef56893fff88cdbd6d89843fc3401d3c48d9803f989bf73d"
        "7c887c3fac8d6f3e1b90793f4dbcb23eecc4783fc1f9ee3e6c227a3fd458163f"
    ),
    "powersgd rank=3 warm_start=False seed=1234": (
        "99d429406d0693bc3cd89d3f7c02683facaf713de5ab053fe09c2e3e758c443df6991a3e734a8f3b2805303c84b9763c"
        "c3960bbd48f1133cbef0203c9605c6bed935d63d0477fb3cc46fbfbfb2e7b73ece52dcbc685c73c001a6553f09f988be"
        "738378bf1c2719bf456c02bca97077bf39a6f4bee1996dbc718a78bf2f62b8be8ff490bc95d57bbf699f7abe516b8fbc"
        "6fab80bfcb7806be17df63bc8b8984bfd35d9fbc46fee0bb838789bf27d9ba3d4b326f3bbca78fbfe8f44d3eb1c3903c"
    ),
    "error_feedback (powersgd rank=1)": (
        "d9a34bbf138ea6be26d3afbdc3aeacbb8dd93fbc157f08bd491de33a9d46293ef5400d4033de014042ecee3fa302dc3f"
        "acf0ca3f82a7bb3f4718ae3f2034a23f"
    ),
}
M = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
Array = np.ndarray[Any, Any]


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def steps(codec: PowerSGD, x: Array, basis: Array, backend: str, count: int) -> list[Array]:
    """What the codec makes of a matrix, step after step, from a given basis on."""
    ops, spec = ops_of(backend), TensorSpec(x.shape, "float32")
    state: Any = {"basis": to_backend(backend, basis)}
    results = []
    for step in range(count):
        site = SITE._replace(step=step)
        payload, state = codec.encode(ops, ops.flatten(to_backend(backend, x)), state, site)
        payload, state = concluded(codec, ops, payload, state, spec, site)
        results.append(to_numpy(codec.decode(ops, payload, spec, site)).reshape(x.shape))
    return results


@backends
def test_the_published_iteration(backend: str) -> None:
    """Section 15 of the specification: squared errors of three steps, of which the last is next to the best."""
    results = steps(PowerSGD(rank=1), M, np.array([[1], [0]], np.float32), backend, 3)
    errors = [float(((M - result) ** 2).sum()) for result in results]
    np.testing.assert_allclose(errors, [0.685714, 0.264509, 0.264505], rtol=2e-5)
    best = np.linalg.svd(M.astype(np.float64), compute_uv=False)[1] ** 2
    assert errors[2] == pytest.approx(best, rel=2e-5)


@backends
@pytest.mark.parametrize("rank", [1, 4])
def test_a_matrix_of_rank_1_is_exact_after_one_step(backend: str, rank: int) -> None:
    x = noise(60, 1) @ noise(1, 45)
    (result,) = steps(PowerSGD(rank=rank), x, np.zeros((45, rank), np.float32), backend, 1)
    np.testing.assert_allclose(result, x, atol=3e-6 * np.abs(x).max())


def test_as_many_columns_as_the_matrix_has_lose_nothing() -> None:
    (result,) = steps(PowerSGD(rank=64), noise(40, 6), np.zeros((6, 6), np.float32), "numpy", 1)
    np.testing.assert_allclose(result, noise(40, 6), atol=1e-5)


def test_warm_start_ends_at_the_best_approximation_and_cold_start_does_not() -> None:
    x, basis = noise(30, 20), np.zeros((20, 2), np.float32)
    values = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    best = np.sqrt((values[2:] ** 2).sum())
    warm, cold = (steps(PowerSGD(rank=2, warm_start=start), x, basis, "numpy", 60) for start in (True, False))
    assert np.linalg.norm(x - warm[-1]) == pytest.approx(best, rel=1e-3)
    assert min(np.linalg.norm(x - result) for result in cold) > 1.01 * best


def exchange(codec: Any, gradients: list[Array], states: list[Any], step: int) -> list[Array]:
    """What every rank gets of their average."""
    ops, collective, sent, world = ops_of("numpy"), LoopbackCollective(), [], len(gradients)
    for rank, gradient in enumerate(gradients):
        site = SITE._replace(step=step, rank=rank, world_size=world)
        _, pending, states[rank] = send(codec, ops, gradient, states[rank], site, collective, states[rank])
        sent.append(pending)
    advance(sent)
    results = []
    for rank, pending in enumerate(sent):
        result, states[rank] = receive(ops, np.ones(1, np.float32), pending, states[rank], collective)
        results.append(result)
    return results


def test_residuals_keep_what_the_average_lacks() -> None:
    """Each rank keeps its own matrix less the common approximation; together that is the mean less it."""
    codec, spec = ErrorFeedback(PowerSGD(rank=2)), TensorSpec((24, 36), "float32")
    states: list[Any] = [codec.init(ops_of("numpy"), spec) for _ in range(3)]
    for step in range(4):
        before = [state["residual"].copy() for state in states]
        gradients = [noise(24, 36) * (rank + 1) + step for rank in range(3)]
        results = exchange(codec, gradients, states, step)
        assert {result.tobytes() for result in results} == {results[0].tobytes()}
        assert {state["basis"].tobytes() for state in states} == {states[0]["basis"].tobytes()}
        for rank, state in enumerate(states):
            expected = gradients[rank].reshape(-1) + before[rank] - results[0].reshape(-1)
            np.testing.assert_array_equal(state["residual"], expected)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_rank_that_is_not_finite_leaves_all_states_usable(bad: float) -> None:
    """Its own residual stays; the others keep all that they would have sent."""
    codec, spec = ErrorFeedback(PowerSGD(rank=2)), TensorSpec((24, 36), "float32")
    states: list[Any] = [codec.init(ops_of("numpy"), spec) for _ in range(2)]
    exchange(codec, [noise(24, 36)] * 2, states, 0)
    before = [{key: array.copy() for key, array in state.items()} for state in states]
    poisoned = noise(24, 36)
    poisoned[3, 5] = bad
    with np.errstate(all="ignore"):
        results = exchange(codec, [poisoned, noise(24, 36)], states, 1)
    assert not any(np.isfinite(result).all() for result in results)
    for state, old in zip(states, before, strict=True):
        np.testing.assert_array_equal(state["basis"], old["basis"])
    np.testing.assert_array_equal(states[0]["residual"], before[0]["residual"])
    np.testing.assert_array_equal(states[1]["residual"], noise(24, 36).reshape(-1) + before[1]["residual"])


def test_a_gradient_of_zeros_does_not_end_the_iteration() -> None:
    """F039: nothing moves, and what comes later is found again."""
    zeros, x = np.zeros((20, 30), np.float32), noise(20, 1) @ noise(1, 30)
    codec, states = PowerSGD(rank=2), [PowerSGD(rank=2).init(ops_of("numpy"), TensorSpec((20, 30), "float32"))]
    for step, gradient in enumerate((zeros, x, zeros, zeros, x)):
        (result,) = exchange(codec, [gradient], states, step)
        np.testing.assert_allclose(result, gradient, atol=1e-5)
        assert gradient.any() or not result.any()


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_very_small_and_very_large_gradients_are_approximated_as_well(scale: float) -> None:
    x, basis = noise(30, 1) @ noise(1, 20), np.zeros((20, 2), np.float32)
    (result,) = steps(PowerSGD(rank=2), np.asarray(x * np.float32(scale)), basis, "numpy", 1)
    np.testing.assert_allclose(result / np.float32(scale), x, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dense"),
    [((5, 4), True), ((64, 32), False), ((1000,), True), ((), True), ((0, 4), True), ((8, 16, 3, 3), False)],
)
def test_what_would_not_become_smaller_goes_dense(shape: tuple[int, ...], dense: bool) -> None:
    """F092: 18 numbers instead of 20 are not worth it."""
    chosen = compose("powersgd", rank=2, min_elements=0, min_ndim=0).for_tensor("w", TensorSpec(shape, "float32"))
    assert (type(chosen) is Dense) is dense
    assert dense or isinstance(chosen, ErrorFeedback)


def test_convolutions_are_matrices_of_their_output_channels() -> None:
    assert PowerSGD(rank=4).part_nbytes(TensorSpec((512, 256, 3, 3), "float32")) == (4 * 4 * 512, 4 * 4 * 2304)


@pytest.mark.parametrize("rank", [0, 65, 1.5])
def test_rank_out_of_range_is_refused(rank: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"PowerSGD: rank must be an integer in \[1, 64\], got"):
        PowerSGD(rank=rank)
