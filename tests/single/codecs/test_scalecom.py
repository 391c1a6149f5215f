"""ScaleCom: the leader's choice, its turn, residuals of all ranks, ranks that are out of step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import ErrorFeedback, Site, TensorSpec, TopK
from hvd_compress.codecs import ScaleCom
from tests.cases import backends, ops_of
from tests.single.codecs.exchanges import exchange

WIRE = {
    "error_feedback (scalecom density=0.1) low_pass=0.25": (
        "88ea03071c000000c02ff4bf40a9ddbfc090c8bfc090c83f40a9dd3fc02ff43f"
    ),
    "scalecom density=0.1": ("88ea03071c000000c02f74bf40a95dbfc09048bfc090483f40a95d3fc02f743f"),
    "error_feedback (scalecom density=0.3 index_codec=u16)": (
        "1300000000000100020003000400050006000700080009003700380039003a003b003c003d003e003f000000c02ff4bf"
        "40a9ddbfc090c8bf40dab4bfc079a2bf406391bfc08a81bf80c865bf80c74abf80fa31bf80c74a3f80c8653fc08a813f"
        "4063913fc079a23f40dab43fc090c83f40a9dd3fc02ff43f"
    ),
}
Array = np.ndarray[Any, Any]


def noise(seed: int, n: int = 300) -> Array:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


@backends
def test_the_leader_chooses_and_the_lead_goes_round(backend: str) -> None:
    """Section 16 of the specification."""
    gradients = [noise(rank) for rank in range(3)]
    for step in range(5):
        results = exchange(ScaleCom(density=0.02), gradients, [None] * 3, [step] * 3, backend)
        chosen = np.sort(np.argsort(-np.abs(gradients[step % 3]))[:6])
        for result in results:
            assert np.flatnonzero(result).tolist() == chosen.tolist()
            np.testing.assert_allclose(result[chosen], np.mean(gradients, 0)[chosen], rtol=1e-6)


def test_equal_gradients_give_top_k_itself() -> None:
    """Section 16 of the specification."""
    ops, x, spec, site = ops_of("numpy"), noise(0), TensorSpec((300,), "float32"), Site("w", 0)
    payload, _ = TopK(density=0.05).encode(ops, x, {}, site)
    expected = TopK(density=0.05).decode(ops, payload, spec, site)
    for result in exchange(ScaleCom(density=0.05), [x] * 4, [None] * 4, [2] * 4):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_everything_arrives_in_the_end() -> None:
    """What all ranks have sent and hold back is what they were given; each holds back exactly what is its own."""
    codec, states, given, received = ErrorFeedback(ScaleCom(density=0.05)), [None] * 3, np.zeros(300), np.zeros(300)
    for step in range(12):
        # Dyadic numbers, which add up exactly.
        gradients = [np.rint(noise(10 * step + rank) * 8) / 8 for rank in range(3)]
        given += np.sum(gradients, 0)
        received += 3 * exchange(codec, gradients, states, [step] * 3)[0].astype(np.float64)
    held = np.sum([state["residual"] for state in states], 0)  # type: ignore[index]
    np.testing.assert_allclose(received + held, given, atol=1e-4)
    assert np.abs(held).max() > 0


def test_a_bad_entry_that_nobody_chose_is_seen_by_all() -> None:
    gradients = [noise(rank) for rank in range(2)]
    gradients[1][np.abs(gradients[0]).argmin()] = np.nan
    states: list[Any] = [None] * 2
    with np.errstate(all="ignore"):
        results = exchange(ErrorFeedback(ScaleCom(density=0.02)), gradients, states, [0, 0])
    assert all(np.isnan(result).any() for result in results)
    np.testing.assert_array_equal(states[0]["residual"], gradients[0])
    assert not states[1]["residual"].any()


def test_ranks_that_are_out_of_step_are_noticed() -> None:
    """Two leaders, or none."""
    for steps in ([0, 1], [1, 0]):
        with pytest.raises(ValueError, match="payload: "):
            exchange(ScaleCom(density=0.02), [noise(0), noise(1)], [None] * 2, steps)


def test_payloads_do_not_grow_with_the_number_of_ranks() -> None:
    """Section 20 of the specification; the indices are filled up to words."""
    spec = TensorSpec((25_600_000,), "float32")
    assert ScaleCom(density=0.001).part_nbytes(spec) == (38_252, 102_400)
