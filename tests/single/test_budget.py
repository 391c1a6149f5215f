"""One budget for all tensors of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import Codec, ErrorFeedback, JointSQ, Site, TensorSpec, TopK
from hvd_compress.budget import BINS, count_magnitudes, shares
from hvd_compress.payload import NONFINITE
from hvd_compress.session import Session
from tests.cases import LoopbackCollective, assert_unchanged, backends, ops_of, to_backend, to_numpy


@backends
def test_counts_are_of_the_leading_bits_and_leave_out_what_is_not_finite(backend: str) -> None:
    ops = ops_of(backend)
    x = np.array([1.0, -1.0, 1.01, 1.04, 0.0, np.inf, np.nan, 3.4e38, 1e-45], np.float32)
    counts = to_numpy(count_magnitudes(ops, to_backend(backend, x)))
    assert counts.shape == (BINS,)
    one = int(np.float32(1.0).view(np.int32)) >> 18
    assert {int(place): int(counts[place]) for place in np.flatnonzero(counts)} == {
        0: 2,
        one: 3,
        one + 1: 1,
        BINS - 1: 1,
    }


def share(codec: Codec, tensors: list[np.ndarray[Any, Any]], world: int = 1) -> list[int]:
    """Each tensor's share when all ranks hold the same."""
    ops = ops_of("numpy")
    counts = np.stack([count_magnitudes(ops, tensor.astype(np.float32)) * world for tensor in tensors])
    return shares([codec] * len(tensors), [TensorSpec(tensor.shape, "float32") for tensor in tensors], counts, world)


@pytest.mark.parametrize("world", [1, 3])
def test_the_largest_entries_of_the_model_are_kept_wherever_they_are(world: int) -> None:
    """F107: two tensors of 50 entries, 50 % kept: all of the large one, none of the small one."""
    draws = np.random.default_rng(0)
    large, small = draws.uniform(9, 11, 50), draws.uniform(0.09, 0.11, 50)
    assert share(TopK(density=0.5, scope="model"), [large, small], world) == [50, 0]


@pytest.mark.parametrize("codec", [TopK(density=0.02, scope="model"), JointSQ(bits_per_entry=1.0, scope="model")])
def test_shares_never_exceed_what_the_tensors_had_and_use_nearly_all_of_it(codec: Any) -> None:
    draws = np.random.default_rng(1)
    tensors = [draws.standard_normal(n) * scale for n, scale in ((5000, 1), (20_000, 0.1), (300, 30), (4000, 1e-3))]
    total = sum(codec.cost(TensorSpec(tensor.shape, "float32")) for tensor in tensors)
    budgets = share(codec, tensors)
    assert 0.97 * total <= sum(budgets) <= total
    assert budgets[0] / 5000 > budgets[1] / 20_000 >= budgets[3] / 4000


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_tensors_get_equal_shares(value: float) -> None:
    assert share(TopK(density=0.1, scope="model"), [np.full(1000, value)] * 3) == [100, 100, 100]


def test_a_budget_sets_the_payload_s_size() -> None:
    spec = TensorSpec((10_000,), "float32")
    assert TopK(scope="model").with_budget(7).counts(spec) == (7,)
    assert TopK(scope="model").with_budget(0).payload_nbytes(spec) == 8
    assert ErrorFeedback(JointSQ(scope="model")).with_budget(1003).payload_nbytes(spec) == 1000
    assert JointSQ(scope="model").with_budget(10).payload_nbytes(spec) == 64


@backends
def test_a_tensor_that_gets_nothing_sends_nothing_and_keeps_everything(backend: str) -> None:
    ops, spec = ops_of(backend), TensorSpec((100,), "float32")
    codec = ErrorFeedback(TopK(scope="model")).with_budget(0)
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    payload, state = codec.encode(ops, to_backend(backend, x), codec.init(ops, spec), Site("w", 1))
    assert not to_numpy(codec.decode(ops, payload, spec, Site("w", 1))).any()
    np.testing.assert_array_equal(to_numpy(state["residual"]), x)


@backends
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_tensor_that_gets_nothing_still_announces_an_overflow(backend: str, bad: float) -> None:
    ops, spec = ops_of(backend), TensorSpec((100,), "float32")
    codec = ErrorFeedback(TopK(scope="model")).with_budget(0)
    x = np.ones(100, np.float32)
    x[50] = bad
    state = codec.init(ops, spec)
    payload, after = codec.encode(ops, to_backend(backend, x), state, Site("w", 1))
    assert int(payload.flag) == NONFINITE
    assert_unchanged(ops, after, state)


class AddingCollective(LoopbackCollective):
    """One rank's sums are its own."""

    world_size = 1

    def allreduce(self, array: Any, name: str) -> str:
        return self.allgather(array, name)


def test_a_session_shares_after_step_0_and_every_so_many_steps() -> None:
    ops, session = ops_of("numpy"), Session()
    codec = TopK(density=0.5, scope="model", rebudget_steps=3)
    spec, seen = TensorSpec((50,), "float32"), []
    for step in range(8):
        collective = AddingCollective()
        sizes = {"a": 10.0, "b": 0.1} if step < 5 else {"a": 0.1, "b": 10.0}
        for key in sizes:
            session.sending(key)
            slot = session.slot(key, codec, spec, ops)
            payload, _ = slot.current.encode(ops, np.full(50, sizes[key], np.float32), {}, Site(key, session.step))
            session.sharing.count(key, payload.magnitudes)
        seen.append([session.slots[key].current.counts(spec)[0] for key in "ab"])
        session.sharing.start(ops, collective)
        session.received(False)
    assert seen == [[25, 25], [50, 0], [50, 0], [50, 0], [50, 0], [50, 0], [50, 0], [0, 50]]


def test_shares_are_saved_with_the_state() -> None:
    ops, spec = ops_of("numpy"), TensorSpec((50,), "float32")
    codec = ErrorFeedback(TopK(density=0.5, scope="model"))
    first, second = Session(), Session()
    for key, size in (("a", 10.0), ("b", 0.1)):
        first.sending(key)
        slot = first.slot(key, codec, spec, ops)
        payload, state = slot.current.encode(ops, np.full(50, size, np.float32), slot.state, Site(key, first.step))
        first.update(slot, state)
        first.sharing.count(key, payload.magnitudes)
    first.sharing.start(ops, AddingCollective())
    first.received(False)
    second.load_state_dict(first.state_dict(np.copy))
    assert [second.slot(key, codec, spec, ops).budget for key in "ab"] == [50, 0]


def test_model_scope_with_the_paper_s_accounting_is_refused() -> None:
    with pytest.raises(ValueError, match="JointSQ: scope must be 'tensor' with accounting='values', got 'model'"):
        JointSQ(accounting="values", scope="model")
