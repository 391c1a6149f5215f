"""`send` and `receive` for several ranks in one process: combining, scaling, overflow, damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hvd_compress import Cast, Codec, Dense, ErrorFeedback, RandomK, Reduction, Site, TensorSpec, TopK
from hvd_compress.exchange import receive, send, spec_of
from hvd_compress.ops import ops_for
from tests.cases import CODECS, LoopbackCollective, advance, backends, codecs, label, ops_of, to_backend, to_numpy

GATHER = [codec for codec in CODECS if codec.reduction is Reduction.GATHER]


def exchange(
    codec: Codec,
    gradients: list[np.ndarray[Any, Any]],
    *,
    backend: str = "numpy",
    scale: float | None = None,
    step: int = 0,
    states: list[Any] | None = None,
    damage: Callable[[Any], Any] | None = None,
    sites: list[Site] | None = None,
) -> list[np.ndarray[Any, Any]]:
    """What every rank gets; `scale` is what the stock allreduce multiplies sums with (default: an average)."""
    ops, world = ops_of(backend), len(gradients)
    collective = LoopbackCollective(damage)
    sites = sites or [Site("w", step, rank, world) for rank in range(world)]
    sent, new = [], []
    for rank, gradient in enumerate(gradients):
        x = to_backend(backend, gradient)
        state = states[rank] if states and states[rank] else codec.init(ops, spec_of(ops, x))
        array, pending, state = send(codec, ops, x, state, sites[rank], collective)
        if states is not None:
            states[rank] = state
        new.append(state)
        sent.append((to_numpy(array), pending))
    advance(pending for _, pending in sent)
    with np.errstate(all="ignore"):
        reduced = sum(array for array, _ in sent) * np.float32(1 / world if scale is None else scale)
    reduced = np.asarray(reduced, sent[0][0].dtype)
    results = []
    for rank, (_, pending) in enumerate(sent):
        state = states[rank] if states is not None else new[rank]
        result, state = receive(ops, to_backend(backend, reduced), pending, state, collective)
        if states is not None:
            states[rank] = state
        results.append(to_numpy(result))
    return results


def ranks(world: int, *shape: int) -> list[np.ndarray[Any, Any]]:
    """One random gradient for each rank."""
    return list(np.random.default_rng(2).standard_normal((world, *shape)).astype(np.float32))


@backends
def test_payloads_are_decoded_before_they_are_added(backend: str) -> None:
    """F001: adding the payloads slot by slot would give something else."""
    gradients = [np.array([4, 1, 0, 0], np.float32), np.array([0, 0, 1, 4], np.float32)]
    for result in exchange(TopK(density=0.5), gradients, backend=backend):
        assert result.tolist() == [2, 0.5, 0.5, 2]


@backends
@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec.reduction is not Reduction.TWO_PHASE], ids=label)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_ranks_get_the_same_and_it_is_the_mean_of_the_decoded(codec: Codec, backend: str, world: int) -> None:
    gradients, ops = ranks(world, 32, 40), ops_of("numpy")
    results = exchange(codec, gradients, backend=backend)
    total, spec, first = np.zeros(1280), TensorSpec((32, 40), "float32"), codec.at_step(0)
    for rank, gradient in enumerate(gradients):
        site = Site("w", 0, rank, world)
        payload, _ = first.encode(ops, gradient.reshape(-1), codec.init(ops, spec), site)
        total += first.decode(ops, payload, spec, site)
    mean, _ = first.absorb(ops, total / world, codec.init(ops, spec), Site("w", 0, 0, world))
    for result in results:
        assert result.shape == (32, 40)
        assert result.dtype == np.float32
        assert result.tobytes() == results[0].tobytes()
        # Sums of float16 payloads are rounded once more for each rank.
        halves = "float16" in repr(codec) and codec.reduction is Reduction.SUM
        np.testing.assert_allclose(result.reshape(-1), mean, rtol=1e-6, atol=4e-3 if halves else 1e-6)


@codecs
def test_the_scaling_of_the_stock_reduction_is_applied_once(codec: Codec) -> None:
    """F003: op=Sum multiplies sums by 1, an average by 1/W, and the user may have factors of his own.

    None of them changes the signs of a vote.
    """
    gradients = ranks(2, 32, 40)
    average = exchange(codec, gradients)[0]
    assert np.abs(average).max() > 0
    for scale in (1.0, 0.125):
        expected = average * 2 * scale if codec.keeps_scale else average
        np.testing.assert_allclose(exchange(codec, gradients, scale=scale)[0], expected, rtol=1e-3, atol=1e-5)


@backends
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@codecs
def test_shape_and_dtype_come_back(codec: Codec, backend: str, dtype: str) -> None:
    for shape in ((), (1,), (0, 3), (5, 7)):
        (result,) = exchange(codec, [np.ones(shape, dtype)], backend=backend)
        assert (result.shape, str(result.dtype)) == (shape, dtype)


def test_torch_bfloat16_comes_back_and_dense_ones_travel_as_float32() -> None:
    import torch

    x = torch.linspace(-3, 3, 40).to(torch.bfloat16)
    for codec in (
        Dense(),
        TopK(density=1.0),
        ErrorFeedback(TopK(density=1.0)),
        Cast(dtype="bfloat16"),
        RandomK(density=1.0),
    ):
        ops, collective = ops_for(x), LoopbackCollective()
        array, pending, state = send(codec, ops, x, codec.init(ops, spec_of(ops, x)), Site("w", 0), collective)
        assert array.dtype == torch.float32
        assert all(value.dtype == torch.float32 for value in state.values())
        result, _ = receive(ops, array, pending, state, collective)
        assert result.dtype == torch.bfloat16
        assert torch.equal(result, x)


@backends
@pytest.mark.parametrize("codec", [codec for codec in CODECS if not codec.entangled], ids=label)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bad_entry_on_one_rank_is_seen_by_all_and_residuals_stay(codec: Codec, backend: str, bad: float) -> None:
    """F027: the bad rank's residual stays, the others' take up the step, nothing turns NaN."""
    states: list[Any] = [None, None]
    gradients = ranks(2, 32, 40)
    exchange(codec, gradients, backend=backend, states=states)
    kept = {key: to_numpy(value).copy() for key, value in states[1].items()}
    poisoned = [gradients[0], gradients[1].copy()]
    poisoned[1][7, 13] = bad
    for result in exchange(codec, poisoned, backend=backend, states=states, step=1):
        assert not np.isfinite(result).all()
    for key, value in states[1].items():
        assert to_numpy(value).tobytes() == kept[key].tobytes()
    for state in states:
        assert all(np.isfinite(to_numpy(value)).all() for value in state.values())
    for result in exchange(codec, gradients, backend=backend, states=states, step=2):
        assert np.isfinite(result).all()


@backends
@codecs
@pytest.mark.parametrize("n", [1, 7, 4096])
def test_zero_gradients_give_zero_and_leave_no_residual(codec: Codec, backend: str, n: int) -> None:
    """F037: three steps of zeros on two ranks, then a normal one."""
    states: list[Any] = [None, None]
    zeros = [np.zeros(n, np.float32)] * 2
    for step in range(3):
        for result in exchange(codec, zeros, backend=backend, states=states, step=step):
            assert not result.any()
        for state in states:
            assert not any(to_numpy(value).any() for value in state.values())
    normal = [np.full(n, 0.5, np.float32)] * 2
    assert exchange(codec, normal, backend=backend, states=states, step=3)[0].any()


def flip(position: int) -> Callable[[Any], Any]:
    """A function that damages one byte of a buffer."""

    def damage(buffer: Any) -> Any:
        damaged = to_numpy(buffer).copy()
        damaged[position % len(damaged)] ^= 0x40
        return to_backend(ops_for(buffer).framework, damaged)

    return damage


@backends
@pytest.mark.parametrize("codec", GATHER, ids=label)
def test_every_damaged_byte_is_found(codec: Codec, backend: str) -> None:
    ops, intact, array, pending = ops_of(backend), LoopbackCollective(), None, None
    for rank, gradient in enumerate(ranks(2, 50)):
        x, site = to_backend(backend, gradient), Site("w", 0, rank, 2)
        array, pending, state = send(codec, ops, x, codec.init(ops, spec_of(ops, x)), site, intact)
    assert pending is not None
    receive(ops, array, pending, state, intact)
    sent = to_numpy(intact.wait("w"))
    for position in range(0, sent.size, 1 if backend == "numpy" else 3):
        damaged = LoopbackCollective(flip(position))
        damaged.buffers = intact.buffers
        with pytest.raises(ValueError, match=r"damaged on the way|out of step|do not fit their payloads"):
            receive(ops, array, pending, state, damaged)


@backends
@pytest.mark.parametrize(
    "other",
    [Site("w", 1, 1, 2), Site("v", 0, 1, 2)],
    ids=["another step", "another tensor"],
)
def test_a_rank_that_is_elsewhere_is_found(backend: str, other: Site) -> None:
    sites = [Site("w", 0, 0, 2), other]
    collective = LoopbackCollective()
    ops, codec = ops_of(backend), TopK()
    for site, gradient in zip(sites, ranks(2, 200), strict=True):
        array, pending, _ = send(codec, ops, to_backend(backend, gradient), {}, site, collective)
    first = pending._replace(site=sites[0], handle="w")
    collective.buffers["w"] = [buffer for buffers in collective.buffers.values() for buffer in buffers]
    with pytest.raises(ValueError, match="the ranks are out of step"):
        receive(ops, array, first, {}, collective)


def test_a_rank_with_another_codec_is_found() -> None:
    ops, collective = ops_of("numpy"), LoopbackCollective()
    for codec in (TopK(density=0.5), TopK(density=0.5, index_codec="bitmap")):
        array, pending, _ = send(codec, ops, ranks(1, 200)[0], {}, Site("w", 0, 0, 2), collective)
    with pytest.raises(ValueError, match="the ranks are out of step"):
        receive(ops, array, pending, {}, collective)


def test_ranks_that_send_different_lengths_are_told_so() -> None:
    ops, collective = ops_of("numpy"), LoopbackCollective()
    for codec in (TopK(density=0.5), TopK(density=0.1)):
        array, pending, _ = send(codec, ops, ranks(1, 200)[0], {}, Site("w", 0, 0, 2), collective)
    with pytest.raises(ValueError, match="bytes from 2 ranks do not fit their payloads: their settings differ"):
        receive(ops, array, pending, {}, collective)


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
@codecs
def test_gradients_that_are_no_real_floats_are_refused(codec: Codec, dtype: str) -> None:
    with pytest.raises(TypeError, match=rf"dtype must be one of float16, bfloat16, float32, float64, got {dtype}"):
        send(codec, ops_of("numpy"), np.zeros(3, dtype), {}, Site("w", 0), LoopbackCollective())


def test_float16_cast_of_an_average_does_not_overflow_and_a_sum_does_not_either() -> None:
    """F033: four ranks of 3e4; the raw sum of 1.2e5 is outside float16."""
    gradients = [np.full(8, 3e4, np.float32)] * 4
    np.testing.assert_allclose(exchange(Cast(), gradients)[0], 3e4, rtol=1e-3)
    np.testing.assert_allclose(exchange(Cast(), gradients, scale=1.0)[0], 1.2e5, rtol=1e-3)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_result_is_written_where_the_caller_says(backend: str) -> None:
    ops, collective = ops_of(backend), LoopbackCollective()
    gradient = to_backend(backend, ranks(1, 6, 7)[0])
    array, pending, _ = send(TopK(density=1.0), ops, gradient, {}, Site("w", 0), collective)
    expected = to_numpy(gradient).copy()
    room = ops.reshape(ops.zeros(42) + 9.0, (6, 7))
    result = np.asarray(receive(ops, array, pending, {}, collective, room)[0])
    np.testing.assert_array_equal(result, expected)
    assert np.shares_memory(result, np.asarray(room))
