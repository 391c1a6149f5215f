"""EF21: what ranks know of each other, the average of gradients, convergence, restarts, how it is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import EF21, Codec, Dense, ErrorFeedback, RandomK, Site, TensorSpec, TopK, compose
from hvd_compress.codecs import PowerSGD
from hvd_compress.exchange import receive, send
from hvd_compress.policy import BySize, compose_config
from tests.cases import LoopbackCollective, OneRank, advance, backends, label, ops_of, to_backend, to_numpy

WIRE = {
    "ef21 (topk density=0.1)": ("010000000600000040da34bfc07922bf406311bf4063113fc079223f40da343f633502071c"),
    "ef21 (randomk density=0.1) eta=0.25": ("80c7cabe00dd45be00b410bd0058d63c809c863e80499b3e"),
    "ef21 (powersgd rank=1) eta=0.5": (
        "d9a3cbbe138e26be26d32fbdc3ae2cbb8dd9bfbb157f88bc491d633a9d46a93df5408d3f33de813f42ec6e3fa3025c3f"
        "acf04a3f82a73b3f47182e3f2034223f"
    ),
}
Array = np.ndarray[Any, Any]
INNER = [TopK(density=0.1), RandomK(density=0.1), PowerSGD(rank=1)]


def exchange(codec: Codec, backend: str, gradients: list[Array], states: list[Any], step: int) -> list[Array]:
    """What every rank gets of their average; states are replaced."""
    ops, rows, world = ops_of(backend), LoopbackCollective(), len(gradients)
    sent, total = [], 0.0
    for rank, gradient in enumerate(gradients):
        x = to_backend(backend, gradient)
        if states[rank] is None:
            states[rank] = codec.init(ops, TensorSpec(gradient.shape, "float32"))
        array, pending, states[rank] = send(codec, ops, x, states[rank], Site("w", step, rank, world), rows)
        total = total + to_numpy(array)
        sent.append(pending)
    advance(sent)
    results = []
    for rank, pending in enumerate(sent):
        reduced = to_backend(backend, np.asarray(total / np.float32(world), np.float32))
        result, states[rank] = receive(ops, reduced, pending, states[rank], rows)
        results.append(to_numpy(result))
    return results


def noise(step: int, rank: int) -> Array:
    return np.random.default_rng([step, rank]).standard_normal((20, 30)).astype(np.float32)


@backends
@pytest.mark.parametrize("eta", [1.0, 0.25])
@pytest.mark.parametrize("inner", INNER, ids=label)
def test_the_optimizer_gets_the_mean_of_what_is_known_of_the_ranks(inner: Codec, eta: float, backend: str) -> None:
    states: list[Any] = [None] * 3
    for step in range(6):
        results = exchange(EF21(inner, eta), backend, [noise(step, rank) for rank in range(3)], states, step)
        assert {result.tobytes() for result in results} == {results[0].tobytes()}
        known = np.mean([to_numpy(state["known"]) for state in states], 0)
        np.testing.assert_allclose(results[0].reshape(-1), known, atol=1e-5)
        for state in states:
            np.testing.assert_array_equal(to_numpy(state["combined"]), results[0].reshape(-1))


@pytest.mark.parametrize("inner", INNER, ids=label)
def test_gradients_that_stay_the_same_become_known(inner: Codec) -> None:
    """Plain error feedback would go on sending parts of them, in turn."""
    states: list[Any] = [None] * 2
    gradients = [noise(0, rank) for rank in range(2)]
    distances = []
    for step in range(80):
        (result, _) = exchange(EF21(inner), "numpy", gradients, states, step)
        distances.append(np.abs(result - np.mean(gradients, 0)).max())
    assert distances[-1] < 0.05 * distances[0]


def test_everything_sent_is_plain_training() -> None:
    states: list[Any] = [None] * 2
    for step in range(4):
        gradients = [noise(step, rank) for rank in range(2)]
        results = exchange(EF21(TopK(density=1.0)), "numpy", gradients, states, step)
        np.testing.assert_allclose(results[0], np.mean(gradients, 0), atol=1e-6)


def test_the_average_begins_with_the_first_gradient() -> None:
    states: list[Any] = [None]
    for step, expected in enumerate((4.0, 4.0 + 0.25 * (8 - 4.0))):
        exchange(
            EF21(TopK(density=1.0), eta=0.25), "numpy", [np.full((2, 2), 4.0 * (step + 1), np.float32)], states, step
        )
        np.testing.assert_array_equal(states[0]["average"], np.full(4, expected, np.float32))


def test_top_2_of_20_converges() -> None:
    """The smoke test of section 0.3: without feedback the distance is 0.74."""
    targets = np.random.default_rng(0).standard_normal((4, 20)) * np.linspace(0.2, 3, 20)
    for codec in (EF21(TopK(density=0.1)), EF21(TopK(density=0.1), eta=0.2)):
        states: list[Any] = [None] * 4
        x = np.zeros(20)
        for step in range(1500):
            gradients = [(x - target).astype(np.float32) for target in targets]
            x = x - 0.05 * exchange(codec, "numpy", gradients, states, step)[0]
        assert np.linalg.norm(x - targets.mean(0)) < 0.01 * np.linalg.norm(targets.mean(0))


@pytest.mark.parametrize("inner", INNER, ids=label)
def test_all_begin_anew_after_a_sum_that_was_not_finite(inner: Codec) -> None:
    """A rank that kept what it knows of itself would be out of step with the sum for ever."""
    codec, states = EF21(inner), [None] * 2
    exchange(codec, "numpy", [noise(0, rank) for rank in range(2)], states, 0)
    bad = noise(1, 0)
    bad[3, 4] = np.nan
    with np.errstate(all="ignore"):
        results = exchange(codec, "numpy", [bad, noise(1, 1)], states, 1)
    assert not any(np.isfinite(result).all() for result in results)
    assert not any(state[name].any() for state in states for name in ("known", "combined"))  # type: ignore[index]
    results = exchange(codec, "numpy", [noise(2, rank) for rank in range(2)], states, 2)
    np.testing.assert_array_equal(states[1]["combined"], results[0].reshape(-1))  # type: ignore[index]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("config", ["topk:density=0.1", "powersgd:rank=1"])
def test_a_step_that_a_loss_scaler_throws_away_changes_nothing(config: str, scaled: bool) -> None:
    scale = [1.0]
    rank = OneRank(BySize(compose_config(f"{config},feedback=ef21,eta=0.5").codec, 0), loss_scale=lambda: scale[0])
    rank.step({"w": noise(0, 0)})
    rank.session.settle()
    before = {key: array.copy() for key, array in rank.session.slots["w"].state.items()}
    bad = noise(1, 0)
    bad[3, 4] = np.inf
    with np.errstate(all="ignore"):
        rank.step({"w": bad})
    scale[0] = 0.5 if scaled else 1.0
    rank.session.settle()
    after = rank.session.slots["w"].state
    assert {key: array.tobytes() for key, array in after.items()} == {
        key: array.tobytes() for key, array in before.items()
    }
    rank.step({"w": noise(2, 0)})
    rank.session.settle()
    known = rank.session.slots["w"].state["known"]
    np.testing.assert_allclose(rank.session.slots["w"].state["combined"], known, atol=1e-5)


def test_a_flush_delivers_the_gradient_itself() -> None:
    rank = OneRank(BySize(EF21(TopK(density=0.1)), 0))
    for step in range(3):
        rank.step({"w": noise(step, 0)})
    rank.session.flush()
    np.testing.assert_allclose(rank.step({"w": noise(3, 0)})["w"], noise(3, 0), atol=1e-6)
    state = rank.session.slots["w"].state
    np.testing.assert_allclose(state["combined"], noise(3, 0).reshape(-1), atol=1e-6)
    np.testing.assert_array_equal(state["known"], noise(3, 0).reshape(-1))
    rank.step({"w": noise(4, 0)})
    assert not rank.session.slots["w"].flushing


def test_it_is_chosen_by_one_word() -> None:
    assert compose_config("topk:density=0.1,feedback=ef21").codec == EF21(TopK(density=0.1))
    assert compose("randomk", density=0.1, feedback="ef21", eta=0.5).codec == EF21(RandomK(density=0.1), eta=0.5)
    assert compose("qsgd", feedback="ef21").codec.name == "ef21"
    assert compose("topk", feedback="ef").codec == ErrorFeedback(TopK())
    assert compose("qsgd", feedback="ef") == compose("qsgd")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("topk:feedback=ef20", "TopK: feedback must be one of 'ef', 'ef21', got 'ef20'"),
        ("topk:feedback=ef21,eta=0", r"TopK: eta must be a number in \(0, 1\], got 0"),
        ("topk:eta=0.5", "TopK: eta must be 1 unless feedback is 'ef21', got 0.5"),
        (
            "topk:feedback=ef21,error_feedback=false",
            "TopK: error_feedback must be true with feedback='ef21', got false",
        ),
        ("randomk:mode=unbiased,feedback=ef21", "EF21: inner must be a codec that loses something"),
        ("dgc:feedback=ef21", "EF21: inner must be a codec that loses something"),
    ],
)
def test_what_does_not_go_together_is_refused(config: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compose_config(config)


@pytest.mark.parametrize("inner", [Dense(), EF21(TopK()), ErrorFeedback(TopK())], ids=label)
def test_codecs_that_it_cannot_help_are_refused(inner: Codec) -> None:
    with pytest.raises(ValueError, match="inner must be a codec that loses something and does not scale up"):
        EF21(inner)
