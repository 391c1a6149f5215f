"""Error feedback: the published run, telescoping, both ways of committing, convergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import Cast, Codec, Dense, ErrorFeedback, RandomK, Site, TensorSpec, TopK
from hvd_compress.codecs import ScaleCom
from tests.cases import CODECS, SITE, backends, concluded, label, ops_of, to_backend, to_numpy

WRAPPED = [codec for codec in CODECS if isinstance(codec, ErrorFeedback)]


@backends
def test_published_run_of_top_k(backend: str) -> None:
    """Section 3 of the specification: three steps of six entries, two of which are sent."""
    ops, codec, spec = ops_of(backend), ErrorFeedback(TopK(density=1 / 3)), TensorSpec((6,), "float32")
    gradients = [[0.5, -2, 0, 1.5, -0.1, 3], [0.5, 0.25, -1, 0, -0.1, 0], [0.5, 0, 0, -1, 1, 0]]
    sent = [{1: -2, 5: 3}, {0: 1, 3: 1.5}, {2: -1, 3: -1}]
    state = codec.init(ops, spec)
    for step, (gradient, expected) in enumerate(zip(gradients, sent, strict=True)):
        x = to_backend(backend, np.array(gradient, np.float32))
        payload, state = codec.encode(ops, x, state, SITE._replace(step=step))
        decoded = to_numpy(codec.decode(ops, payload, spec, SITE))
        assert {int(i): decoded[i] for i in np.flatnonzero(decoded)} == expected
        if step == 0:
            np.testing.assert_array_equal(to_numpy(state["residual"]), np.array([0.5, 0, 0, 1.5, -0.1, 0], np.float32))
    np.testing.assert_allclose(to_numpy(state["residual"]), [0.5, 0.25, 0, 0, 0.8, 0], atol=1e-7)


@backends
@pytest.mark.parametrize("codec", WRAPPED, ids=label)
def test_everything_arrives_in_the_end(codec: ErrorFeedback, backend: str) -> None:
    """Telescoping over 20 steps: sum of decoded = sum of gradients - last residual, for decay 1."""
    codec = ErrorFeedback(codec.inner)
    ops, spec, draws = ops_of(backend), TensorSpec((20, 25), "float32"), np.random.default_rng(3)
    state = codec.init(ops, spec)
    came, went, size = np.zeros(500), np.zeros(500), 0.0
    for step in range(20):
        gradient = draws.standard_normal(500).astype(np.float32)
        site = SITE._replace(step=step)
        sent = codec.encode(ops, to_backend(backend, gradient), state, site)
        payload, state = concluded(codec, ops, *sent, spec, site)
        went += to_numpy(codec.decode(ops, payload, spec, site))
        came, size = came + gradient, size + float(np.abs(gradient).sum())
    assert np.abs(went + to_numpy(state["residual"]) - came).max() <= 1e-5 * size / 500
    assert np.abs(to_numpy(state["residual"])).max() > 0


def test_sparsifiers_lose_nothing_at_all_on_dyadic_numbers() -> None:
    ops, spec, draws = ops_of("numpy"), TensorSpec((300,), "float32"), np.random.default_rng(4)
    for inner in (TopK(density=0.05), RandomK(density=0.05)):
        codec, total, went = ErrorFeedback(inner), np.zeros(300), np.zeros(300)
        state = codec.init(ops, spec)
        for step in range(20):
            gradient = (draws.integers(-64, 64, 300) / 16).astype(np.float32)
            payload, state = codec.encode(ops, gradient, state, SITE._replace(step=step))
            went += codec.decode(ops, payload, spec, SITE._replace(step=step))
            total += gradient
        np.testing.assert_array_equal(went + state["residual"], total)


@pytest.mark.parametrize("codec", WRAPPED, ids=label)
def test_a_step_without_gradient_delivers_what_was_kept(codec: ErrorFeedback) -> None:
    """F015: a codec whose memory was never called would decode zeros."""
    ops, spec = ops_of("numpy"), TensorSpec((5, 20), "float32")
    gradient = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    _, state = concluded(codec, ops, *codec.encode(ops, gradient, codec.init(ops, spec), SITE), spec, SITE)
    kept = state["residual"].copy()
    site = SITE._replace(step=8)
    payload, after = concluded(codec, ops, *codec.encode(ops, np.zeros_like(gradient), state, site), spec, site)
    delivered = codec.decode(ops, payload, spec, site)
    # What stays below a threshold can wait for ever.
    assert np.abs(delivered).max() > 0 or np.abs(kept).max() < getattr(codec.inner, "threshold", 0)
    new, old = codec.low_pass * delivered + after["residual"], 1 - codec.low_pass + codec.low_pass * codec.decay
    np.testing.assert_allclose(new, old * kept, rtol=1e-6)


@backends
@pytest.mark.parametrize("codec", WRAPPED, ids=label)
def test_a_room_for_the_new_state_changes_no_bit_and_keeps_the_old_state(codec: ErrorFeedback, backend: str) -> None:
    ops, spec = ops_of(backend), TensorSpec((400,), "float32")
    draws = np.random.default_rng(5)
    plain = late = codec.init(ops, spec)
    room: Any = {"residual": ops.zeros(400) + 7.0}
    for step in range(4):
        x = to_backend(backend, draws.standard_normal(400).astype(np.float32))
        site, before = SITE._replace(step=step), to_numpy(late["residual"]).copy()
        ours, plain = codec.encode(ops, x, plain, site)
        theirs, new = codec.encode(ops, x, late, site, room)
        np.testing.assert_array_equal(to_numpy(late["residual"]), before)
        for a, b in zip(ours.parts, theirs.parts, strict=True):
            np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
        np.testing.assert_array_equal(to_numpy(plain["residual"]), to_numpy(new["residual"]))
        late, room = new, late


@backends
@pytest.mark.parametrize("inner", [TopK(density=0.05), ScaleCom(density=0.05)], ids=label)
def test_a_low_pass_lets_the_residual_follow_slowly(inner: Codec, backend: str) -> None:
    """Section 16 of the specification: e' = (1 - b) e + b (e + g - C)."""
    ops, spec, draws = ops_of(backend), TensorSpec((200,), "float32"), np.random.default_rng(6)
    codec, residual = ErrorFeedback(inner, low_pass=0.125), np.zeros(200)
    state = codec.init(ops, spec)
    for step in range(5):
        gradient, site = draws.standard_normal(200).astype(np.float32), SITE._replace(step=step)
        sent = codec.encode(ops, to_backend(backend, gradient), state, site)
        payload, state = concluded(codec, ops, *sent, spec, site)
        decoded = to_numpy(codec.decode(ops, payload, spec, site))
        assert np.flatnonzero(decoded).size == 10
        residual = 0.875 * residual + 0.125 * (residual + gradient - decoded)
        np.testing.assert_allclose(to_numpy(state["residual"]), residual, atol=1e-6)


@pytest.mark.parametrize("inner", [RandomK(mode="unbiased"), Dense(), ErrorFeedback(TopK())], ids=label)
def test_codecs_that_it_cannot_help_are_refused(inner: Codec) -> None:
    with pytest.raises(ValueError, match="inner must be a codec that loses something and does not scale up"):
        ErrorFeedback(inner)


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan")])
def test_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=r"ErrorFeedback: decay must be a number in \[0, 1\], got"):
        ErrorFeedback(TopK(), decay=decay)


def distance_from_optimum(codec: Codec, steps: int = 3000) -> float:
    """The smoke test of the specification's section 0.3, four workers on a quadratic of 20 dimensions."""
    ops, spec = ops_of("numpy"), TensorSpec((20,), "float32")
    targets = np.random.default_rng(0).standard_normal((4, 20)) * np.linspace(0.2, 3, 20)
    states: list[Any] = [codec.init(ops, spec) for _ in range(4)]
    x, late = np.zeros(20), np.zeros(20)
    for step in range(steps):
        mean = np.zeros(20)
        for worker in range(4):
            site = Site("x", step, worker, 4)
            payload, states[worker] = codec.encode(ops, x - targets[worker], states[worker], site)
            mean += codec.decode(ops, payload, spec, site) / 4
        x = x - 0.05 * mean
        late += x * (step >= steps - 500) / 500
    best = targets.mean(0)
    return float(np.linalg.norm(late - best) / np.linalg.norm(best))


def test_top_2_of_20_converges_with_error_feedback_only() -> None:
    assert distance_from_optimum(TopK(density=0.1)) > 0.3
    assert distance_from_optimum(ErrorFeedback(TopK(density=0.1))) < 0.01


@pytest.mark.parametrize(
    "codec",
    [Dense(), RandomK(density=0.1, mode="unbiased"), ErrorFeedback(RandomK(density=0.1)), ErrorFeedback(Cast())],
    ids=label,
)
def test_the_other_codecs_converge(codec: Codec) -> None:
    assert distance_from_optimum(codec, steps=1000) < 0.05
