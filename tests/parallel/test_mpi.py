"""`hvd_compress.mpi.allreduce` with real ranks: NumPy arrays, no training framework."""

from __future__ import annotations

import doctest
import pickle
from typing import Any

import numpy as np
import pytest

from hvd_compress import Codec, ErrorFeedback, Site, TensorSpec, TopK
from tests.cases import ARRAYS, CODECS, LoopbackCollective, advance, label

pytestmark = pytest.mark.launches(("mpi", 1), ("mpi", 2), ("mpi", 3), ("mpi", 4))


@pytest.fixture
def comm() -> Any:
    """All ranks."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def gradient(rank: int, step: int, *shape: int) -> np.ndarray[Any, Any]:
    """What a rank has at a step."""
    return np.random.default_rng(100 * step + rank).standard_normal(shape).astype(np.float32)


def simulated(codec: Codec, world: int, step: int, states: list[Any], *shape: int) -> np.ndarray[Any, Any]:
    """The average that all ranks should get, computed in this process; advances the ranks' states."""
    from hvd_compress.exchange import receive, send
    from hvd_compress.ops import ops_for

    collective, pending, total = LoopbackCollective(), [], 0.0
    ops = ops_for(np.zeros(1))
    for rank in range(world):
        site = Site("w", step, rank, world)
        array, one, states[rank] = send(codec, ops, gradient(rank, step, *shape), states[rank], site, collective)
        pending.append(one)
        total = total + array
    advance(pending)
    reduced = np.asarray(total * total.dtype.type(1 / world))
    for rank in range(world):
        result, states[rank] = receive(ops, reduced, pending[rank], states[rank], collective)
    return np.asarray(result)


@pytest.mark.parametrize("codec", CODECS, ids=label)
def test_ranks_get_what_one_process_computes(codec: Codec, comm: Any) -> None:
    from hvd_compress.mpi import allreduce
    from hvd_compress.ops import ops_for

    spec = TensorSpec((17, 23), "float32")
    states: list[Any] = [codec.init(ops_for(np.zeros(1)), spec) for _ in range(comm.size)]
    state = None
    for step in range(4):
        result, state = allreduce(gradient(comm.rank, step, 17, 23), codec, comm, name="w", state=state)
        expected = simulated(codec, comm.size, step, states, 17, 23)
        # MPI adds in an order of its own where payloads are summed.
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3 if "float16" in repr(codec) else 1e-6)
        assert len({row.tobytes() for row in comm.allgather(result)}) == 1
        state = pickle.loads(pickle.dumps(state))
    assert state is not None
    assert state["step"] == 4


@pytest.mark.parametrize("array", list(ARRAYS.values()), ids=list(ARRAYS))
def test_arrays_of_any_kind_come_back_in_their_shape_and_dtype(array: np.ndarray[Any, Any], comm: Any) -> None:
    from hvd_compress.mpi import allreduce

    result, _ = allreduce(array, TopK(density=1.0), comm, name="w")
    assert (result.shape, result.dtype) == (array.shape, array.dtype)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(result, array.astype(np.float32).astype(array.dtype), rtol=1e-6)


def test_a_sum_is_the_average_times_the_ranks(comm: Any) -> None:
    from hvd_compress.mpi import allreduce

    average, _ = allreduce(gradient(comm.rank, 0, 40), TopK(density=0.5), comm, name="w")
    total, _ = allreduce(gradient(comm.rank, 0, 40), TopK(density=0.5), comm, name="w", op="sum")
    np.testing.assert_allclose(total, average * comm.size, rtol=1e-6)


def test_a_bad_entry_on_one_rank_is_seen_by_all(comm: Any) -> None:
    from hvd_compress.mpi import allreduce

    codec, array = ErrorFeedback(TopK(density=0.1)), gradient(comm.rank, 0, 100)
    _, state = allreduce(array, codec, comm, name="w")
    before = state["arrays"]["residual"].copy()
    if comm.rank == comm.size - 1:
        array = array.copy()
        array[50] = np.inf
    result, state = allreduce(array, codec, comm, name="w", state=state)
    assert not np.isfinite(result).any()
    if comm.rank == comm.size - 1:
        np.testing.assert_array_equal(state["arrays"]["residual"], before)


def test_a_rank_that_is_elsewhere_is_found_by_all(comm: Any) -> None:
    from hvd_compress.mpi import allreduce

    if comm.size == 1:
        return
    _, state = allreduce(gradient(0, 0, 64), TopK(density=0.5), comm, name="w")
    if comm.rank == 0:
        state["step"] += 1
    with pytest.raises(ValueError, match="the ranks are out of step"):
        allreduce(gradient(0, 0, 64), TopK(density=0.5), comm, name="w", state=state)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"array": [1.0]}, TypeError, "array must be a NumPy array, got list"),
        ({"array": np.arange(3)}, TypeError, "dtype must be one of float16, .*, got int64"),
        ({"codec": "topk"}, TypeError, "codec must be a codec, got 'topk'"),
        ({"op": "max"}, ValueError, "op must be 'average' or 'sum', got 'max'"),
        ({"name": ""}, ValueError, "name must be a string that is not empty, got ''"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_sent(
    arguments: dict[str, Any], error: type[Exception], message: str, comm: Any
) -> None:
    from hvd_compress.mpi import allreduce

    good = {"array": np.ones(3, np.float32), "codec": TopK(), "comm": comm, "name": "w"}
    with pytest.raises(error, match=message):
        allreduce(**{**good, **arguments})


@pytest.mark.launches(("mpi", 1))
def test_examples() -> None:
    import hvd_compress.mpi

    failed, tried = doctest.testmod(hvd_compress.mpi)
    assert failed == 0
    assert tried > 0
