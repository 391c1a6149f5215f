"""What is special about random-k."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import ErrorFeedback, RandomK, Site, TensorSpec
from tests.cases import backends, ops_of, to_backend, to_numpy

SELECTIONS = ("stratified", "uniform", "block")


def chosen(codec: RandomK, n: int, site: Site, backend: str = "numpy") -> list[int]:
    """The indices that are chosen."""
    ops = ops_of(backend)
    x = to_backend(backend, np.zeros(n, np.float32))
    return to_numpy(codec.encode(ops, x, {}, site)[0].kept).tolist()


@backends
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize(("n", "density"), [(1, 1.0), (10, 1.0), (100, 0.33), (2048, 0.1), (65537, 0.01)])
def test_ranks_choose_the_same_distinct_entries_and_steps_others(
    backend: str, selection: str, n: int, density: float
) -> None:
    """F011, for the codec by itself."""
    codec = RandomK(density=density, selection=selection)
    first = chosen(codec, n, Site("w", 3, 0, 4), backend)
    assert chosen(codec, n, Site("w", 3, 2, 4), backend) == first
    assert len(set(first)) == len(first) == codec.counts(TensorSpec((n,), "float32"))[0]
    assert min(first) >= 0
    assert max(first) < n
    if density < 1:
        assert chosen(codec, n, Site("w", 4, 0, 4), backend) != first
        assert chosen(codec, n, Site("v", 3, 0, 4), backend) != first
        assert chosen(RandomK(density=density, selection=selection, seed=1), n, Site("w", 3), backend) != first


@pytest.mark.parametrize("selection", SELECTIONS)
def test_with_error_feedback_values_arrive_as_they_are(selection: str) -> None:
    """F012: decoded values equal the original ones at the chosen indices."""
    ops, spec, site = ops_of("numpy"), TensorSpec((1000,), "float32"), Site("w", 0)
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    codec = ErrorFeedback(RandomK(density=0.1, selection=selection))
    payload, _ = codec.encode(ops, x, codec.init(ops, spec), site)
    decoded = codec.decode(ops, payload, spec, site)
    places = payload.kept
    np.testing.assert_array_equal(decoded[places], x[places])
    assert not np.delete(decoded, places).any()


@pytest.mark.parametrize("selection", SELECTIONS)
def test_every_entry_is_chosen_as_often_as_the_density_says(selection: str) -> None:
    n, draws = 50, 4000
    counts = np.zeros(n)
    for step in range(draws):
        counts[chosen(RandomK(density=0.2, selection=selection), n, Site("w", step))] += 1
    assert np.abs(counts / draws - 0.2).max() < 6 * np.sqrt(0.2 * 0.8 / draws)


def test_blocks_of_unequal_size_are_scaled_by_their_own_probability() -> None:
    ops, codec = ops_of("numpy"), RandomK(density=0.4, mode="unbiased")
    payload, _ = codec.encode(ops, np.ones(5, np.float32), {}, Site("w", 0))
    assert payload.parts[0].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("mode", ["ef", "unbiased"])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_density_1_is_exact(mode: str, selection: str) -> None:
    ops, x = ops_of("numpy"), np.random.default_rng(0).standard_normal(77).astype(np.float32)
    codec = RandomK(density=1.0, mode=mode, selection=selection)
    payload, _ = codec.encode(ops, x, {}, Site("w", 0))
    np.testing.assert_array_equal(codec.decode(ops, payload, TensorSpec((77,), "float32"), Site("w", 0)), x)


def test_float16_values_of_many_ranks_do_not_overflow_their_sum() -> None:
    ops, codec, spec = ops_of("numpy"), RandomK(density=1.0, value_dtype="float16"), TensorSpec((4,), "float32")
    sites = [Site("w", 0, rank, 8) for rank in range(8)]
    payloads = [codec.encode(ops, np.full(4, 6e4, np.float32), {}, site)[0] for site in sites]
    total = sum(payload.parts[0] for payload in payloads)
    reduced = payloads[0]._replace(parts=(total,))
    np.testing.assert_allclose(codec.decode(ops, reduced, spec, sites[0]), 8 * 6e4, rtol=1e-3)
