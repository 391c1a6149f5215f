"""JointSQ's allocation of bits against sorting all items, dynamic programming and published tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hvd_compress.codecs._allocation import allocate, key_ratios
from hvd_compress.codecs._budget import (
    HEADER,
    WIDTHS,
    Budget,
    ValueBudget,
    WireBudget,
    section_nbytes,
    used_nbytes,
)
from hvd_compress.indices import index_nbytes
from hvd_compress.ops import Kernels
from hvd_compress.payload import EMPTY, NONFINITE, NORMAL
from tests.cases import backends, ops_of, required_backends, to_backend, to_numpy

Floats = np.ndarray[Any, Any]

HAND = np.array([10, 0.1, 0.3, 7, 0.9, 0.5, 3, 1.5], np.float32)
COSTS = (0.0, 6.0, 16.0, 30.0)


def allot(a: Floats, budget: Budget, cost: float, backend: str, shift: int | None = None) -> tuple[int, list[Any]]:
    """Flag and the indices of each width, computed where codecs compute them."""
    ops = ops_of(backend)

    def run(ops: Kernels, x: Any) -> tuple[Any, ...]:
        flag, groups = allocate(ops, x, budget, key_ratios(cost), shift)
        return ops.constant((flag,), "int64"), *(group.indices for group in groups)

    flag, *groups = ops.run_eagerly(run, (to_backend(backend, a),), [("int64", (1,)), *[("int64", (None,))] * 3])
    return int(to_numpy(flag)[0]), [to_numpy(group) for group in groups]


def widths_of(
    a: Floats, budget: Budget, cost: float = 0.0, backend: str = "numpy", shift: int | None = None
) -> list[int]:
    """Bits of each entry, as the package allots them."""
    flag, groups = allot(a, budget, cost, backend, shift)
    assert flag == NORMAL or not any(group.size for group in groups)
    widths = np.zeros(a.size, int)
    for width, indices in zip(WIDTHS, groups, strict=True):
        assert (np.diff(indices) > 0).all()
        assert not widths[indices].any()
        widths[indices] = width
    return widths.tolist()


def counts_of(widths: list[int]) -> list[int]:
    return [widths.count(width) for width in WIDTHS]


def fits(budget: Budget, kept: list[int]) -> bool:
    """Straight from the definitions of the two budgets."""
    if isinstance(budget, ValueBudget):
        return sum(width * k for width, k in zip(WIDTHS, kept, strict=True)) <= budget.bits
    return used_nbytes(budget.numel, kept) <= budget.nbytes


def items_of(a: Floats, cost: float) -> list[tuple[float, int, int]]:
    """(minus key, index, level) of all items, in the order in which they are taken."""
    keys = [np.abs(a).astype(np.float64) / ratio for ratio in key_ratios(cost)]
    pairs = itertools.product(range(a.size), range(3))
    return sorted((-keys[level][index], index, level) for index, level in pairs if keys[level][index] >= 2.0**-126)


def brute_force(a: Floats, budget: Budget, cost: float = 0.0) -> tuple[list[int], float, bool]:
    """Widths, last key and whether the next longer prefix would fit too, from a sort of all items."""
    widths, kept = [0] * a.size, [0, 0, 0]
    best, key, longer = list(widths), math.inf, fits(budget, kept)
    for negative, index, level in items_of(a, cost):
        widths[index] = WIDTHS[level]
        kept[level] += 1
        if level:
            kept[level - 1] -= 1
        longer = fits(budget, kept)
        if longer:
            best, key = list(widths), -negative
    return best, key, longer


def noise(a: Floats, widths: list[int]) -> float:
    """The model's error: every bit divides an entry's energy by 4."""
    return float(np.sum(a.astype(np.float64) ** 2 * 0.25 ** np.array(widths)))


def least_noise(a: Floats, bits: int) -> float:
    """Smallest error of any widths that take at most so many bits, by dynamic programming."""
    best = [0.0] * (bits + 1)
    for value in a.astype(np.float64):
        best = [
            min(best[left - width] + value**2 * 0.25**width for width in (0, *WIDTHS) if width <= left)
            for left in range(bits + 1)
        ]
    return best[bits]


def inputs(count: int, seed: int) -> Iterator[tuple[Floats, np.random.Generator]]:
    """Small arrays of all kinds that have ties or lie on thresholds."""
    draws = np.random.default_rng(seed)
    r8 = np.float32(key_ratios(0.0)[2])
    kinds = [
        lambda n: draws.standard_normal(n),
        lambda n: draws.standard_t(1, n),
        lambda n: draws.laplace(size=n) * 1e-30,
        lambda n: np.full(n, draws.standard_normal()),
        lambda n: draws.integers(-3, 4, n),
        lambda n: draws.integers(0, 100, n),
        lambda n: 2.0 ** draws.integers(-20, 20, n),
        lambda n: 2.0 ** draws.integers(-140, 127, n),
        lambda n: draws.standard_normal(n).astype(np.float16),
        lambda n: r8 * draws.choice(np.float32([1, 4, 1 / r8, 4 / r8, 1 / 4]), n),
        lambda n: np.float32(4 / 3) ** draws.integers(0, 12, n),
        lambda n: np.where(draws.random(n) < 0.9, 0, draws.standard_normal(n)),
        lambda n: np.where(draws.random(n) < 0.5, 1e-39, draws.standard_normal(n) * 1e-37),
        lambda n: np.append(draws.standard_normal(n - 1), 3e38),
    ]
    for number in range(count):
        n = int(draws.choice([1, 2, 3, 7, 30, 100, 400]))
        yield np.asarray(kinds[number % len(kinds)](n)).astype(np.float32), draws


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(("backend", "count"), [(name, 500 if name == "numpy" else 60) for name in required_backends()])
def test_allocation_equals_a_sort_of_all_items(backend: str, count: int, cost: float) -> None:
    for a, draws in inputs(count, seed=int(cost)):
        budget: Budget
        if draws.random() < 0.7:
            budget = WireBudget(a.size, 64 + 4 * int(draws.integers(0, max(1, a.size // 4))))
        else:
            budget = ValueBudget(a.size, int(draws.integers(1, 8 * a.size + 1)))
        assert widths_of(a, budget, cost, backend) == brute_force(a, budget, cost)[0], (a.tolist(), budget)


@pytest.mark.parametrize("shift", [14, 16, 19, 20])
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "equal", "few values", "float16"])
def test_allocation_does_not_depend_on_the_bins(kind: str, shift: int) -> None:
    draws = np.random.default_rng(3)
    a = {
        "normal": draws.standard_normal(20000),
        "heavy tails": draws.standard_t(1, 20000),
        "equal": np.ones(20000),
        "few values": draws.integers(-5, 6, 20000),
        "float16": draws.standard_normal(20000).astype(np.float16),
    }[kind].astype(np.float32)
    for nbytes in (64, 800, 4000, 20000, 21252):
        budget = WireBudget(a.size, nbytes)
        assert widths_of(a, budget, shift=shift) == widths_of(a, budget)


@pytest.mark.parametrize("nbytes", range(7000, 20000, 997))
def test_size_dips_of_equal_values_are_not_missed(nbytes: int) -> None:
    """Where all entries have 4 bits a bitmap is saved: prefixes fit behind longer ones that do not."""
    a, budget = np.ones(20000, np.float32), WireBudget(20000, nbytes)
    sizes = []
    for level, taken in itertools.product(range(3), range(20001)):
        kept = [0, 0, 0]
        kept[level] = taken
        kept[level - 1] = 20000 - taken if level else kept[level - 1]
        sizes.append(used_nbytes(20000, kept))
    longest = max(place for place, size in enumerate(sizes) if size <= nbytes)
    level, taken = divmod(longest, 20001)
    below = WIDTHS[level - 1] if level else 0
    assert widths_of(a, budget) == [WIDTHS[level]] * taken + [below] * (20000 - taken)


@pytest.mark.parametrize(
    ("bits", "widths", "used", "last_key", "error", "best"),
    [
        (8, [4, 0, 0, 2, 0, 0, 2, 0], 8, 2.5, 7.425625, None),
        (16, [4, 0, 0, 4, 2, 0, 4, 2], 16, 0.75, 1.1584375, 1.1584375),
        (18, [4, 0, 0, 4, 2, 2, 4, 2], 18, 0.5, 0.9240625, 0.9240625),
        (20, [4, 0, 0, 4, 2, 2, 4, 2], 18, 0.5, 0.9240625, 0.76933837890625),
        (22, [8, 0, 0, 4, 2, 2, 4, 2], 22, 0.4555431, 0.53496337890625, 0.53496337890625),
        (24, [8, 0, 0, 4, 2, 2, 4, 4], 24, 0.375, 0.40312744140625, 0.40312744140625),
    ],
)
@backends
def test_published_table(
    backend: str, bits: int, widths: list[int], used: int, last_key: float, error: float, best: float | None
) -> None:
    budget = ValueBudget(8, bits)
    assert widths_of(HAND, budget, backend=backend) == widths
    assert sum(widths) == used
    assert brute_force(HAND, budget)[1] == pytest.approx(last_key, rel=1e-6)
    assert noise(HAND, widths) == pytest.approx(error, rel=1e-6)
    if best is not None:
        assert least_noise(HAND, bits) == pytest.approx(best, rel=1e-6)


def test_nothing_is_better_where_the_budget_ends_on_the_hull() -> None:
    draws = np.random.default_rng(5)
    for _ in range(40):
        a = draws.standard_t(2, 10).astype(np.float32)
        used = sum(widths_of(a, ValueBudget(10, int(draws.integers(2, 60)))))
        widths = widths_of(a, ValueBudget(10, used))
        assert sum(widths) == used
        assert noise(a, widths) == pytest.approx(least_noise(a, used), rel=1e-12)


@pytest.mark.parametrize("bits", range(3, 60, 7))
def test_elsewhere_the_loss_is_below_the_profit_of_the_first_item_left_out(bits: int) -> None:
    a = np.random.default_rng(bits).standard_t(2, 10).astype(np.float32)
    widths = widths_of(a, ValueBudget(10, bits))
    weights, densities = (2, 2, 4), (15 / 32, 15 / 512, 255 / 262144)
    taken = sum((0, 2, 4, 8).index(width) for width in widths)
    _, index, level = items_of(a, 0.0)[taken]
    profit = float(a[index]) ** 2 * densities[level] * weights[level]
    assert noise(a, widths) - least_noise(a, bits) <= profit


@pytest.mark.parametrize("n", [400, 3000])
@pytest.mark.parametrize("cost", COSTS)
def test_widths_are_those_of_three_thresholds_and_the_next_longer_prefix_does_not_fit(n: int, cost: float) -> None:
    a = np.random.default_rng(n).standard_t(2, n).astype(np.float32)
    budget = WireBudget(n, n // 2)
    widths, key, longer = brute_force(a, budget, cost)
    assert not longer
    assert widths_of(a, budget, cost) == widths
    magnitudes = np.abs(a).astype(np.float64)
    levels = sum((magnitudes / ratio >= key).astype(int) for ratio in key_ratios(cost))
    assert np.array([0, *WIDTHS])[levels].tolist() == widths
    assert used_nbytes(n, counts_of(widths)) <= budget.nbytes


def test_key_ratios() -> None:
    assert key_ratios(0.0) == (1.0, 4.0, float.fromhex("0x1.5f3aa673fa911p+4"))
    assert key_ratios(6.0)[1] == 2.0
    assert key_ratios(16.0)[1] == pytest.approx(4 / 3)
    assert key_ratios(30.0)[1] == 1.0
    for cost in COSTS:
        assert key_ratios(cost)[2] / key_ratios(cost)[1] == pytest.approx(math.sqrt(512 / 17))


def test_two_bits_are_not_used_at_the_highest_charge_for_positions() -> None:
    a = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    assert counts_of(widths_of(a, WireBudget(2000, 500), 30.0))[0] <= 1
    assert counts_of(widths_of(a, WireBudget(2000, 500), 0.0))[0] > 300


@pytest.mark.parametrize("n", [1, 2, 7, 64, 1000, 4099])
@pytest.mark.parametrize("width", WIDTHS)
def test_sizes_in_arrays_are_those_of_the_index_code_and_the_codes(n: int, width: int) -> None:
    ops, k = ops_of("numpy"), np.arange(n + 1)
    expected = [index_nbytes(n, count) + math.ceil(count * width / 8) for count in range(n + 1)]
    assert section_nbytes(ops, n, k, width).tolist() == expected


@pytest.mark.parametrize("n", [1, 5, 64, 333])
def test_no_payload_is_larger_than_the_most_that_a_count_of_codes_allows(n: int) -> None:
    for bits in range(1, 8 * n + 1, 3):
        largest = max(
            used_nbytes(n, [k2, k4, k8])
            for k8 in {0, 1, bits // 16, bits // 8}
            for k4 in {0, 1, bits // 8, (bits - 8 * k8) // 4}
            for k2 in {0, max(0, bits - 8 * k8 - 4 * k4) // 2}
            if 2 * k2 + 4 * k4 + 8 * k8 <= bits and k2 + k4 + k8 <= n
        )
        assert HEADER <= largest <= ValueBudget(n, bits).nbytes


@backends
def test_what_cannot_be_allotted_is_said(backend: str) -> None:
    for values, flag in (
        ([1, np.nan], NONFINITE),
        ([np.inf, 0], NONFINITE),
        ([0, -0.0, 1e-39], EMPTY),
        ([], EMPTY),
        ([2.0**-126], NORMAL),
    ):
        a = np.array(values, np.float32)
        for budget in (WireBudget(a.size, 64), ValueBudget(a.size, 8)):
            assert allot(a, budget, 0.0, backend)[0] == flag


def test_a_budget_of_less_than_one_item_keeps_nothing() -> None:
    assert widths_of(HAND, ValueBudget(8, 1)) == [0] * 8


@pytest.mark.parametrize(("n", "bits"), [(3, 4), (12, 13), (100, 103), (10_000, 10_240)])
def test_larger_entries_never_get_fewer_bits_and_the_budget_holds(n: int, bits: int) -> None:
    """F111: at the ratio 0.032 by the paper's counting."""
    assert math.ceil(n * 32 * 0.032) == bits
    a = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    widths = np.array(widths_of(a, ValueBudget(n, bits)))
    assert set(widths.tolist()) <= {0, *WIDTHS}
    assert bits - 4 < widths.sum() <= bits
    assert (np.diff(widths[np.argsort(np.abs(a))]) >= 0).all()


@backends
def test_operations_that_only_the_allocation_needs(backend: str) -> None:
    ops, draws = ops_of(backend), np.random.default_rng(0)
    numbers = draws.integers(0, 50, 600_000).astype(np.int32)
    counts = ops.count(to_backend(backend, numbers), 64)
    assert to_numpy(counts).dtype == np.int64
    assert ops.to_list(counts) == np.bincount(numbers, minlength=64).tolist()
    for values in (numbers[:999].astype(np.int64), -numbers[:999].astype(np.float64)):
        order = to_numpy(ops.argsort(to_backend(backend, values)))
        assert order.tolist() == sorted(range(999), key=values.tolist().__getitem__)
