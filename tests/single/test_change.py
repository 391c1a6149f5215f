"""Codecs that change during a run, and flushes: nothing that was not sent is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import DenseMomentum, TensorSpec
from hvd_compress.policy import BySize, compose_config
from hvd_compress.rules import policy_of
from tests.cases import OneRank, OneRankCollective

WITH_FEEDBACK = ["topk:density=0.1", "qsgd:bits=2,error_feedback=true", "jointsq:bits_per_entry=1.0", "topk_qsgd"]
WITH_FEEDBACK += ["powersgd:rank=1", "powersgd:rank=3"]
LOSSLESS = ["none"]
SHAPE = (40, 50)
Array = Any


def gradient(step: int) -> Array:
    return np.random.default_rng(step).standard_normal(SHAPE).astype(np.float32)


class Run:
    """Steps of one rank, and what they handed over and brought back in sum."""

    def __init__(self, config: Any, **settings: Any) -> None:
        self.rank = OneRank(policy_of(config), **settings)
        self.given = np.zeros(SHAPE)
        self.received = np.zeros(SHAPE)
        self.steps = 0

    def step(self, given: Array = None) -> Array:
        given = gradient(self.steps) if given is None else given
        self.given += given
        self.steps += 1
        result = self.rank.step({"w": given.copy()})["w"]
        self.received += result
        return result

    def change(self, config: Any) -> None:
        self.rank.worker.policy = policy_of(config)

    @property
    def slot(self) -> Any:
        return self.rank.session.slots["w"]

    @property
    def unsent(self) -> Array:
        slot = self.slot
        held = slot.codec.unsent(self.rank._ops, slot.state)
        return np.zeros(SHAPE) if held is None else held.reshape(SHAPE)


@pytest.mark.parametrize("after", WITH_FEEDBACK + LOSSLESS)
@pytest.mark.parametrize("before", WITH_FEEDBACK + LOSSLESS)
def test_what_is_unsent_survives_a_change_and_a_flush_delivers_it(before: str, after: str) -> None:
    """F006."""
    run = Run(before)
    for _ in range(3):
        run.step()
    run.change(after)
    for _ in range(4):
        run.step()
        np.testing.assert_allclose(run.received + run.unsent, run.given, atol=1e-5)
    assert run.slot.codec == compose_config(after).codec
    run.rank.session.flush()
    run.step()
    np.testing.assert_allclose(run.received, run.given, atol=1e-5)
    run.step()
    assert not run.slot.flushing


@pytest.mark.parametrize("config", WITH_FEEDBACK)
def test_the_step_after_a_flush_goes_on_with_the_codec(config: str) -> None:
    """F007."""
    run = Run(config)
    run.step()
    dense = run.rank.stats.step.dense_bytes
    few = run.rank.stats.step.sent_bytes
    run.rank.session.flush()
    run.step()
    assert run.rank.stats.step.sent_bytes == dense
    assert not run.unsent.any()
    run.step()
    assert run.rank.stats.step.sent_bytes == few
    assert run.unsent.any()


def test_a_change_of_density_keeps_momentum_and_velocity() -> None:
    run, other = Run("dgc:density=0.1"), Run("dgc:density=0.1")
    run.step()
    other.step()
    run.change("dgc:density=0.2")
    other.slot.codec = compose_config("dgc:density=0.2").codec
    np.testing.assert_array_equal(run.step(), other.step())
    assert set(run.slot.state) == {"momentum", "velocity"}


def test_a_flush_of_dgc_delivers_its_velocity() -> None:
    run = Run("dgc:density=0.1,momentum=0.0")
    for _ in range(3):
        run.step()
    run.rank.session.flush()
    run.step()
    np.testing.assert_allclose(run.received, run.given, atol=1e-5)
    assert not run.slot.state["velocity"].any()
    assert not run.slot.state["momentum"].any()


@pytest.mark.parametrize("late", [False, True])
def test_a_flush_that_overflows_is_made_again(late: bool) -> None:
    run = Run("topk:density=0.1", loss_scale=(lambda: 1.0) if late else None)
    run.step()
    run.rank.session.settle()
    before = run.unsent.copy()
    assert before.any()
    run.rank.session.flush()
    for bad in (np.inf, np.nan):
        damaged = gradient(9)
        damaged[3, 4] = bad
        result = run.rank.step({"w": damaged})["w"]
        assert not np.isfinite(result).all()
        run.rank.session.settle()
        np.testing.assert_array_equal(run.unsent, before)
    run.step()
    np.testing.assert_allclose(run.received, run.given, atol=1e-5)
    run.rank.session.settle()
    assert not run.unsent.any()


def test_one_rank_s_overflow_stops_the_others_flush_too() -> None:
    """What is combined is not finite on any rank: each must deliver again."""
    run = Run("topk:density=0.1")
    run.step()
    before = run.unsent.copy()
    run.rank.session.flush()
    worker, session, ops = run.rank.worker, run.rank.session, run.rank._ops
    worker.begin(session, "w")
    collective = OneRankCollective()
    reduced, sent = worker.send(session, "w", ops, gradient(5), collective, 0.0)
    worker.receive(session, ops, reduced * np.float32(np.nan), sent, collective)
    np.testing.assert_array_equal(run.unsent, before)
    result = run.step(gradient(6))
    np.testing.assert_allclose(result, gradient(6) + before, atol=1e-6)


def test_steps_choose_the_codec() -> None:
    run = Run({"steps": [[0, "none"], [2, "topk:density=0.1"], [4, "topk:density=0.01"], [6, "none"]]})
    sent = []
    for _ in range(8):
        run.step()
        sent.append(run.rank.stats.step.kept_entries)
    assert sent == [2000, 2000, 200, 200, 20, 20, 2000, 2000]
    np.testing.assert_allclose(run.received, run.given, atol=1e-5)


def test_loaded_state_is_flushed_too() -> None:
    first, second = Run("topk:density=0.1"), Run("topk:density=0.1")
    first.step()
    second.rank.session.load_state_dict(first.rank.session.state_dict(np.copy))
    second.rank.session.flush()
    result = second.step(gradient(1))
    np.testing.assert_allclose(result, gradient(1) + first.unsent, atol=1e-6)


@pytest.mark.parametrize("saved_after", range(1, 8))
def test_a_run_that_was_saved_anywhere_goes_on_through_its_changes(saved_after: int) -> None:
    config = {"steps": [[0, "none"], [2, "topk:density=0.1"], [4, "qsgd"], [6, "jointsq:bits_per_entry=1.0"]]}
    whole, first, second = Run(config), Run(config), Run(config)
    results = [whole.step().tobytes() for _ in range(8)]
    for _ in range(saved_after):
        first.step()
    second.rank.session.load_state_dict(first.rank.session.state_dict(np.copy))
    second.rank.session.steps = second.steps = saved_after
    assert [second.step().tobytes() for _ in range(saved_after, 8)] == results[saved_after:]


RULES = {
    "rules": [
        {"name": "*.bias", "codec": "none"},
        {"name": "embed*", "min_elements": 5000, "codec": "topk:density=0.001"},
        {"min_ndim": 4, "codec": "qsgd:bits=4"},
        {"max_elements": 2000, "codec": "topk:density=0.5"},
    ],
    "default": "topk:density=0.01",
}


@pytest.mark.parametrize(
    ("name", "shape", "config"),
    [
        ("a.bias", (4000, 4), "none"),
        ("embedding", (100, 50), "topk:density=0.001"),
        ("embedding", (100, 49), "topk:density=0.01"),
        ("conv", (64, 3, 7, 7), "qsgd:bits=4"),
        ("small", (40, 50), "topk:density=0.5"),
        ("other", (41, 50), "topk:density=0.01"),
        ("vector", (9000,), "none"),
        ("tiny", (2, 2), "none"),
    ],
)
def test_the_first_rule_that_fits_chooses(name: str, shape: tuple[int, ...], config: str) -> None:
    """F105."""
    assert policy_of(RULES).for_tensor(name, TensorSpec(shape, "float32")) == compose_config(config).codec


def test_dense_tensors_have_momentum_where_the_default_codec_has() -> None:
    policy = policy_of({"rules": [{"name": "head*", "codec": "none"}], "default": "dgc:momentum=0.5"})
    assert policy.for_tensor("head", TensorSpec((100, 100), "float32")) == DenseMomentum(momentum=0.5)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"rules": []}, ValueError, "'default'"),
        ({"rules": "topk", "default": "none"}, TypeError, "rules must be a list, got 'topk'"),
        ({"rules": ["topk"], "default": "none"}, ValueError, "rules must be mappings with a 'codec', got 'topk'"),
        ({"rules": [{"name": "x"}], "default": "none"}, ValueError, "with a 'codec'"),
        ({"rules": [{"nmae": "x", "codec": "none"}], "default": "none"}, TypeError, "no parameter 'nmae'"),
        ({"rules": [{"name": 3, "codec": "none"}], "default": "none"}, TypeError, "name must be a pattern .* got 3"),
        ({"rules": [{"min_ndim": -1, "codec": "none"}], "default": "none"}, ValueError, "min_ndim must be"),
        ({"rules": [], "default": "none", "x": 1}, TypeError, "no parameter 'x'"),
        ({"rules": [{"codec": "dgc"}], "default": "topk"}, ValueError, "must not mix .* got DGC, ErrorFeedback"),
        ({"steps": []}, ValueError, r"must begin with 0 and rise, got \[\]"),
        ({"steps": [[1, "topk"]]}, ValueError, r"got \[1\]"),
        ({"steps": [[0, "topk"], [0, "none"]]}, ValueError, r"got \[0, 0\]"),
        ({"steps": [[0, "topk"], [5]]}, ValueError, r"pairs of a step and a config, got \[5\]"),
        ({"steps": {"0": "topk"}}, TypeError, "steps must be a list"),
        ({"steps": [[0, "topk"], [9, "dgc"]]}, ValueError, "must not mix"),
        ({"steps": [[0, "tokp"]]}, ValueError, "tokp"),
    ],
)
def test_wrong_rules_and_steps_are_refused(config: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        policy_of(config)


@pytest.mark.parametrize("config", [RULES, {"steps": [[0, "none"], [3, RULES]]}, "topk:density=0.1,min_ndim=1"])
def test_equal_policies_have_equal_configs(config: Any) -> None:
    assert policy_of(config).config == policy_of(config).config
    assert policy_of(config).config != policy_of("topk:density=0.2").config
    assert isinstance(policy_of("topk"), BySize)
