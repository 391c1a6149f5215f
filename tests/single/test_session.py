"""A session's steps and its two ways of committing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import Codec, Dense, ErrorFeedback, Site, TensorSpec, TopK
from hvd_compress.session import Session
from hvd_compress.slot import Slot
from tests.cases import ops_of

OPS, SPEC, CODEC = ops_of("numpy"), TensorSpec((50,), "float32"), ErrorFeedback(TopK(density=0.1))


class Scaler:
    """A loss scaler as the session sees it."""

    def __init__(self) -> None:
        self.scale = 4.0

    def get_scale(self) -> float:
        return self.scale


def make_step(session: Session, gradient: Any, overflow: bool = False, codec: Codec = CODEC) -> Slot:
    """Send and receive one tensor."""
    session.sending("w")
    slot = session.slot("w", codec, SPEC, OPS)
    _, state = codec.encode(OPS, gradient, slot.state, Site("w", session.step), session.room(slot))
    session.update(slot, state)
    session.received(overflow)
    return slot


def gradient(step: int) -> Any:
    return np.random.default_rng(step).standard_normal(50).astype(np.float32)


def test_a_step_begins_after_results_were_received_or_with_a_tensor_that_was_sent() -> None:
    session = Session()
    assert [session.sending("a"), session.sending("b"), session.step] == [True, False, 0]
    session.received(False)
    session.received(False)
    assert [session.sending("b"), session.sending("a"), session.step] == [True, False, 1]
    assert [session.sending("a"), session.step] == [True, 2]


def test_without_a_scaler_a_step_takes_effect_at_once() -> None:
    session = Session()
    slot = make_step(session, gradient(0))
    assert slot.state["residual"].any()
    assert slot.spare is None


def test_with_a_scaler_a_step_takes_effect_when_the_next_one_begins() -> None:
    session = Session(loss_scale=Scaler().get_scale)
    slot = make_step(session, gradient(0))
    assert not slot.state["residual"].any()
    session.sending("w")
    assert slot.state["residual"].any()


def test_committing_late_gives_the_same_residuals_and_allocates_two_buffers_only() -> None:
    plain, late = Session(), Session(loss_scale=Scaler().get_scale)
    buffers = set()
    for step in range(6):
        ours, theirs = make_step(plain, gradient(step)), make_step(late, gradient(step))
        late.settle()
        np.testing.assert_array_equal(ours.state["residual"], theirs.state["residual"])
        if step >= 2:
            buffers.add(theirs.state["residual"].ctypes.data)
    assert len(buffers) == 2


def test_memory_of_the_state_counts_what_waits_and_what_is_spare() -> None:
    plain, late = Session(), Session(loss_scale=Scaler().get_scale)
    for step in range(4):
        slot = make_step(plain, gradient(step))
        assert plain.state_nbytes == slot.state_nbytes == 4 * 50
        make_step(late, gradient(step), overflow=step == 2)
        assert late.state_nbytes == 2 * 4 * 50
        late.settle()
        assert late.state_nbytes == 2 * 4 * 50


def test_an_overflow_anywhere_in_the_session_drops_the_step_bit_for_bit() -> None:
    session = Session(loss_scale=Scaler().get_scale)
    slot = make_step(session, gradient(0))
    session.settle()
    before = slot.state["residual"].copy()
    make_step(session, gradient(1), overflow=True)
    session.sending("w")
    assert slot.state["residual"].tobytes() == before.tobytes()


def test_a_step_after_an_overflow_goes_on_as_if_it_had_not_been() -> None:
    plain, session = Session(), Session(loss_scale=Scaler().get_scale)
    for step in range(5):
        make_step(session, gradient(step), overflow=step == 2)
        if step != 2:
            make_step(plain, gradient(step))
    session.settle()
    np.testing.assert_array_equal(session.slots["w"].state["residual"], plain.slots["w"].state["residual"])


def test_residuals_follow_the_loss_scale_also_after_an_overflow() -> None:
    scaler = Scaler()
    session = Session(loss_scale=scaler.get_scale)
    slot = make_step(session, gradient(0))
    session.settle()
    before = slot.state["residual"].copy()
    make_step(session, gradient(1), overflow=True)
    scaler.scale = 2.0
    session.sending("w")
    np.testing.assert_array_equal(slot.state["residual"], before / 2)


@pytest.mark.parametrize("scaled", [False, True])
def test_saved_and_loaded_equals_uninterrupted(scaled: bool) -> None:
    def start() -> tuple[Session, Scaler]:
        scaler = Scaler()
        return Session(loss_scale=scaler.get_scale if scaled else None), scaler

    (straight, scaler), (first, _), (second, other) = start(), start(), start()
    for step in range(20):
        # The scale changes between saving and going on.
        scaler.scale = 2.0 if step >= 10 else 4.0
        make_step(straight, gradient(step))
    for step in range(10):
        make_step(first, gradient(step))
    second.load_state_dict(first.state_dict(np.copy))
    other.scale = 2.0
    for step in range(10, 20):
        make_step(second, gradient(step))
    straight.settle()
    second.settle()
    assert straight.step == second.step == 19
    assert second.slots["w"].state["residual"].tobytes() == straight.slots["w"].state["residual"].tobytes()


def test_saved_state_is_a_copy_and_leaves_dense_tensors_out() -> None:
    session = Session()
    session.sending("b")
    session.slot("b", Dense(), SPEC, OPS)
    make_step(session, gradient(0))
    saved = session.state_dict(np.copy)
    assert set(saved) == {"w"}
    before = saved["w"]["state"]["residual"].copy()
    make_step(session, gradient(1))
    np.testing.assert_array_equal(saved["w"]["state"]["residual"], before)


def test_state_that_no_tensor_has_taken_yet_is_saved_again() -> None:
    first = Session()
    make_step(first, gradient(0))
    saved = first.state_dict(np.copy)
    second = Session()
    second.load_state_dict(saved)
    assert second.state_dict(np.copy) == saved


@pytest.mark.parametrize(
    ("codec", "spec", "message"),
    [
        (ErrorFeedback(TopK(density=0.2)), SPEC, r"saved state is for codec .*0\.1.*, this run has .*0\.2"),
        (CODEC, TensorSpec((5, 10), "float32"), r"saved state is for shape \[50\], this run has \[5, 10\]"),
    ],
)
def test_saved_state_of_another_codec_or_shape_is_refused(codec: Codec, spec: TensorSpec, message: str) -> None:
    first, second = Session(), Session()
    make_step(first, gradient(0))
    second.load_state_dict(first.state_dict(np.copy))
    with pytest.raises(ValueError, match=message):
        second.slot("w", codec, spec, OPS)


def test_a_saved_state_that_is_not_finite_is_refused() -> None:
    first, second = Session(), Session()
    make_step(first, gradient(0))
    saved = first.state_dict(np.copy)
    saved["w"]["state"]["residual"][7] = np.inf
    second.load_state_dict(saved)
    with pytest.raises(ValueError, match="the saved residual holds inf or NaN"):
        second.slot("w", CODEC, SPEC, OPS)


def test_a_tensor_that_changes_its_shape_is_refused() -> None:
    session = Session()
    make_step(session, gradient(0))
    with pytest.raises(ValueError, match=r"was .*\(50,\).* until now, got .*\(51,\)"):
        session.slot("w", CODEC, TensorSpec((51,), "float32"), OPS)
