"""The C++ kernels give the bits of the bodies that they replace, with every instruction set and number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.codecs._allocation import allocate, key_ratios
from hvd_compress.codecs._budget import Budget, ValueBudget, WireBudget
from hvd_compress.generator import Key
from hvd_compress.ops import ops_for
from hvd_compress.ops._numpy import NumpyOps
from hvd_compress.ops.codes import TERMS
from hvd_compress.ops.kernels import Kernels
from hvd_compress.ops.native import NativeKernels
from hvd_compress.ops.native_codes import NativeCodes
from hvd_compress.ops.native_levels import NativeLevels
from tests.cases import ARRAYS, required_backends

# Left out only where someone asks for a run without the extension; where it was not built, these fail.
pytestmark = pytest.mark.skipif("native" not in required_backends(), reason="HVD_COMPRESS_NATIVE=0 leaves them out")

PLAIN = NumpyOps()
INSTRUCTION_SETS = ("portable", "avx2", "avx512")
# Around the parts that threads share out, and around the widths of vectors.
SIZES = (0, 1, 7, 8, 9, 31, 33, 1000, 65535, 65536, 65537, 300_001)


def values(n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Numbers of many magnitudes, with ties, zeros of both signs and denormals among them."""
    generator = np.random.default_rng(seed)
    x = (generator.standard_normal(n) * 2.0 ** generator.integers(-140, 100, n)).astype(np.float32)
    x[generator.integers(0, max(1, n), n // 4)] = np.float32(-1.5)
    x[generator.integers(0, max(1, n), n // 50)] = np.float32(-0.0)
    return x


ALL = {str(n): values(n) for n in SIZES} | {name: x for name, x in ARRAYS.items() if x.dtype == np.float32}


def same(ours: Any, theirs: Any) -> None:
    """Both are the same arrays, or tuples of them, bit for bit."""
    if isinstance(ours, tuple):
        for mine, other in zip(ours, theirs, strict=True):
            same(mine, other)
        return
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert ours.tobytes() == theirs.tobytes()


@pytest.fixture(params=[1, 2, 3])
def ops(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    """The operations of NumPy arrays, with so many threads."""
    assert native.kernels is not None, "the extension was not built"
    before = native.kernels.threads()
    native.kernels.set_threads(request.param)
    ops = ops_for(np.zeros(1))
    assert isinstance(ops, NativeKernels)
    yield ops
    native.kernels.set_threads(before)


every_array = pytest.mark.parametrize("x", list(ALL.values()), ids=list(ALL))


@every_array
def test_largest(ops: NativeKernels, x: np.ndarray[Any, Any]) -> None:
    x = x.reshape(-1)
    for k in sorted({0, min(1, x.size), x.size // 100, x.size // 3, max(0, x.size - 1), x.size}):
        np.testing.assert_array_equal(ops.largest(x, k), PLAIN.largest(x, k))


def test_largest_where_the_sample_misleads(ops: NativeKernels) -> None:
    # The large ones stand where few samples are taken, and nowhere else.
    for x in (np.zeros(1_000_000, np.float32), np.ones(1_000_000, np.float32)):
        x[-5000:] = np.arange(5000) + 2
        for k in (1, 4999, 5000, 5001, 20_000):
            np.testing.assert_array_equal(ops.largest(x, k), PLAIN.largest(x, k))


@every_array
@pytest.mark.parametrize("decay", [1.0, 0.9, 0.0])
def test_scale_add_and_subtract(ops: NativeKernels, x: np.ndarray[Any, Any], decay: float) -> None:
    y = np.ascontiguousarray(x[::-1] if x.ndim else x)
    for ours, theirs in (
        (ops.scale_add(x, y, decay), PLAIN.scale_add(x, y, decay)),
        (ops.subtract(x, y), PLAIN.subtract(x, y)),
        (ops.scale_add(x, y, decay, np.empty_like(y)), PLAIN.scale_add(x, y, decay)),
    ):
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()


@every_array
def test_halves(ops: NativeKernels, x: np.ndarray[Any, Any]) -> None:
    edges = np.array(
        [0, -0.0, 65504, 65519.9, 65520, -65520, 1e9, np.inf, -np.inf, 2**-14, 2**-24, 2**-25, 6e-8, 6.1e-5], np.float32
    )
    x = np.concatenate(
        [
            np.ascontiguousarray(x).reshape(-1),
            edges,
            edges * np.float32(1.0009),
            np.float32(2.0) ** -np.arange(12, 28, dtype=np.float32) * np.float32(1.5),
        ]
    )
    halves = ops.cast(x, "float16")
    same(halves, PLAIN.cast(x, "float16"))
    same(ops.cast(halves, "float32"), PLAIN.cast(halves, "float32"))


def test_all_halves_there_are(ops: NativeKernels) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = ~np.isnan(halves)
    same(ops.cast(halves, "float32")[numbers], PLAIN.cast(halves, "float32")[numbers])
    assert np.isnan(ops.cast(halves, "float32")[~numbers]).all()
    assert np.isnan(ops.cast(ops.cast(halves, "float32"), "float16")[~numbers]).all()


@every_array
def test_scale(ops: NativeKernels, x: np.ndarray[Any, Any]) -> None:
    for factor in (0.5, 1 / 3, -2.0, 0.0):
        with PLAIN.quiet():
            same(ops.scale(x, factor), PLAIN.scale(x, factor))


@every_array
def test_all_finite(ops: NativeKernels, x: np.ndarray[Any, Any]) -> None:
    assert bool(ops.all_finite(x)) == bool(PLAIN.all_finite(x))
    for bad in (np.inf, -np.inf, np.nan):
        for place in {0, x.size // 2, x.size - 1} if x.size else ():
            damaged = np.ascontiguousarray(x).reshape(-1).copy()
            damaged[place] = bad
            assert not ops.all_finite(damaged)


@pytest.mark.parametrize("n", SIZES)
def test_sealed_rows(ops: NativeKernels, n: int) -> None:
    generator = np.random.default_rng(n)
    sections = [generator.integers(0, 256, size).astype(np.uint8) for size in (4, 4 * n, n % 7, 0)]
    row = ops.seal_row(sections, 0xDEADBEEF)
    same(row, PLAIN.seal_row(sections, 0xDEADBEEF))
    for first in range(4):
        moved = np.empty(row.size + 4, np.uint8)[first:][: row.size]
        moved[:] = row
        for tag, fits in ((0xDEADBEEF, True), (1, False)):
            assert ops.seal_fits(moved, tag) == PLAIN.seal_fits(moved, tag) == (True, fits)
    for place in (0, row.size - 9, row.size - 8, row.size - 5, row.size - 1):
        damaged = row.copy()
        damaged[place] ^= 0x40
        expected = (place >= row.size - 4, place < row.size - 4)
        assert ops.seal_fits(damaged, 0xDEADBEEF) == PLAIN.seal_fits(damaged, 0xDEADBEEF) == expected
    for wrong in (row[:-1], row[:4]):
        for seal_fits in (ops.seal_fits, PLAIN.seal_fits):
            with pytest.raises(ValueError, match=r"seal|size|shape|broadcast"):
                seal_fits(wrong, 0)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 5, 70_001])
def test_whole_rows(ops: NativeKernels, n: int, count: int) -> None:
    head = b"\x01\x00\x00\x00abcd"
    row = ops.seal_row([np.frombuffer(head, np.uint8), np.arange(n).astype(np.uint8)], 7)
    rows = np.tile(row, count)
    cases = [(rows, count, row.size, head, 7, True)]
    cases += [(rows, count + 1, row.size, head, 7, False), (rows[:-8], count, row.size, head, 7, False)]
    cases += [(rows, count, row.size, head[:-1] + b"e", 7, False), (rows, count, row.size, head, 8, False)]
    cases += [(rows, count * row.size, 1, b"", 7, False), (rows, 0, 0, b"", 7, False)]
    for place in (0, rows.size // 2, rows.size - 9, rows.size - 1):
        damaged = rows.copy()
        damaged[place] ^= 0x10
        cases.append((damaged, count, row.size, head, 7, False))
    for *arguments, fits in cases:
        assert ops.rows_fit(*arguments) == PLAIN.rows_fit(*arguments) == fits


@every_array
def test_counts_and_bounds(ops: NativeKernels, x: np.ndarray[Any, Any]) -> None:
    x = np.ascontiguousarray(x).reshape(-1)
    for shift in (14, 18):
        same(ops.count_magnitudes(x, shift), PLAIN.count_magnitudes(x, shift))
    for least in (0, 1, 0x3F800000, 0x7F800000):
        same(ops.at_least(x, least), PLAIN.at_least(x, least))
        assert ops.count_at_least(x, least) == PLAIN.count_at_least(x, least)
        for below in (least + 1, least + 2**23, 1 << 31):
            same(ops.at_least(x, least, below), PLAIN.at_least(x, least, below))


PIECES = st.integers(1, 70)


@every_array
@pytest.mark.parametrize("decay", [1.0, 0.9, 0.0])
def test_accumulate_in_place(ops: NativeKernels, x: np.ndarray[Any, Any], decay: float) -> None:
    x = np.ascontiguousarray(x).reshape(-1)
    residual = np.ascontiguousarray(x[::-1])
    expected = PLAIN.accumulate(x, residual, decay)
    before = residual.copy()
    total = ops.accumulate(x, residual, decay, residual)
    assert total is residual
    same(total, expected)
    for bad in (np.inf, np.nan) if x.size else ():
        damaged, kept = x.copy(), before.copy()
        damaged[-1] = bad
        total = ops.accumulate(damaged, kept, decay, kept)
        assert total is not kept
        assert not np.isfinite(total[-1])
        same(kept, before)


@every_array
@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_accumulate_largest_in_place(ops: NativeKernels, x: np.ndarray[Any, Any], decay: float) -> None:
    x = np.ascontiguousarray(x).reshape(-1)
    before = np.ascontiguousarray(x[::-1])
    for k in sorted({0, min(1, x.size), x.size // 100, x.size // 3, x.size}):
        residual = before.copy()
        total, indices = ops.accumulate_largest(x, residual, decay, k, residual)
        assert total is residual
        same((total, indices), PLAIN.accumulate_largest(x, before, decay, k))
    if x.size:
        damaged, kept = x.copy(), before.copy()
        damaged[-1] = np.nan
        total, indices = ops.accumulate_largest(damaged, kept, decay, 1, kept)
        assert indices.tolist() == [x.size - 1]
        assert total is not kept
        same(kept, before)


def test_accumulate_largest_where_the_sample_misleads(ops: NativeKernels) -> None:
    x = np.ones(1_000_000, np.float32)
    residual = np.zeros_like(x)
    residual[-5000:] = np.arange(5000) + 2
    for k in (1, 4999, 5001, 20_000):
        kept = residual.copy()
        same(ops.accumulate_largest(x, kept, 1.0, k, kept), PLAIN.accumulate_largest(x, residual, 1.0, k))


def test_a_sum_that_overflows_leaves_the_residual_alone(ops: NativeKernels) -> None:
    x = np.full(100_000, 3e38, np.float32)
    kept = np.zeros(100_000, np.float32)
    kept[70_000] = 3e38
    before = kept.copy()
    assert np.isinf(ops.accumulate(x, kept, 1.0, kept)[70_000])
    same(kept, before)


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_sums_at_the_edge_of_float32(ops: NativeKernels, decay: float) -> None:
    most, half_step = np.finfo(np.float32).max, np.float32(2.0**103)
    for x in (np.nextafter(half_step, np.float32(0)), half_step, np.nextafter(half_step, most), most):
        for sign in (1, -1):
            gradient, before = np.full(1000, sign * x, np.float32), np.full(1000, sign * most, np.float32)
            kept = before.copy()
            total = ops.accumulate(gradient, kept, decay, kept)
            same(total, PLAIN.accumulate(gradient, before, decay))
            finite = bool(np.isfinite(total).all())
            assert (total is kept) == finite
            same(kept, total if finite else before)


@every_array
@pytest.mark.parametrize("nesterov", [False, True])
def test_add_momentum(ops: NativeKernels, x: np.ndarray[Any, Any], nesterov: bool) -> None:
    x = np.ascontiguousarray(x).reshape(-1)
    momentum, velocity = np.ascontiguousarray(x[::-1]), x * np.float32(0.3)
    with PLAIN.quiet():
        expected = PLAIN.add_momentum(x, momentum, velocity, 0.9, nesterov)
    same(ops.add_momentum(x, momentum, velocity, 0.9, nesterov), expected)
    room = np.empty_like(x), np.empty_like(x)
    assert ops.add_momentum(x, momentum, velocity, 0.9, nesterov, room) is room
    same(room, expected)
    state = momentum.copy(), velocity.copy()
    assert ops.add_momentum(x, *state, 0.9, nesterov, state) is state
    same(state, expected)
    if x.size:
        damaged, state = x.copy(), (momentum.copy(), velocity.copy())
        damaged[x.size // 2] = np.inf
        with PLAIN.quiet():
            assert not np.isfinite(ops.add_momentum(damaged, *state, 0.9, nesterov, state)[1]).all()
        same(state, (momentum, velocity))


def some_indices(n: int, k: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False)).astype(np.int64)


@pytest.mark.parametrize("n", [1, 100, 5000, 300_001, 2**20 + 3])
def test_entries_are_taken_added_and_summed(ops: NativeKernels, n: int) -> None:
    x = values(n)
    rows = [(some_indices(n, min(n, k), k), values(min(n, k), k)) for k in (1, n // 3, 2 * n // 3, n, 0)]
    # More rows than are added at once.
    rows = rows * 4
    for indices, sent in rows:
        same(ops.take(x, indices), PLAIN.take(x, indices))
        same(ops.take(indices, np.arange(indices.size)[::-1].copy()), indices[::-1])
        same(ops.scatter_add(x.copy(), indices, sent), PLAIN.scatter_add(x.copy(), indices, sent))
    for factor in (1.0, 1 / 3, 0.0):
        scale = np.array([factor], np.float32)
        same(ops.sum_entries(iter(rows), scale, x.copy()), PLAIN.sum_entries(rows, scale, x.copy()))
        same(ops.sum_entries([], scale, x.copy()), np.zeros_like(x))
        # Not where vectors may be stored past the caches.
        room = np.empty(n + 1, np.float32)[1:]
        same(ops.sum_entries(iter(rows), scale, room), PLAIN.sum_entries(rows, scale, x.copy()))
    parts = [some_indices(n, n // 3, 5), some_indices(n, n // 3, 6)]
    assert bool(ops.are_distinct(parts, n)) == bool(PLAIN.are_distinct(parts, n)) == (n == 1)
    assert ops.are_distinct([np.arange(0, n, 2), np.arange(1, n, 2)], n)


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer's build keeps no memory")
def test_memory_of_large_arrays_is_used_again(ops: NativeKernels) -> None:
    packed = np.arange(100_000, dtype=np.uint8)
    first, second = (ops.unpack_bits(packed, 4, 200_000) for _ in range(2))
    places = {first.ctypes.data, second.ctypes.data}
    same(first, second)
    del first, second
    again = [ops.unpack_bits(packed, 4, count) for count in (199_000, 200_000)]
    assert {array.ctypes.data for array in again} == places
    same(again[0], again[1][:199_000])


def test_kept_memory_has_a_bound(ops: NativeKernels) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    packed, before = np.zeros(8_000_000, np.uint8), resident()
    arrays = [ops.unpack_bits(packed, 8, 8_000_000 - 500_000 * turn) for turn in range(10)]
    assert resident() - before > 200e6
    del arrays
    assert resident() - before < 100e6


def test_threads_share_the_memory(ops: NativeKernels) -> None:
    def turns(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            packed = rng.integers(0, 256, int(rng.integers(20_000, 60_000)), dtype=np.uint8)
            if not np.array_equal(ops.unpack_bits(packed, 8, packed.size), packed):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(turns, range(4)))


@pytest.mark.parametrize("wrong", [-1, 100, 2**40, -(2**62)])
def test_wrong_indices_touch_no_memory(ops: NativeKernels, wrong: int) -> None:
    x, one = np.zeros(100, np.float32), np.ones(2, np.float32)
    for pair in (np.array([5, wrong]), np.array([wrong, 5])):
        calls: list[Callable[[], Any]] = [
            lambda pair=pair: ops.take(x, pair),
            lambda pair=pair: ops.scatter_add(x, pair, one),
            lambda pair=pair: ops.sum_entries([(pair, one)], one[:1], x),
            lambda pair=pair: ops.are_distinct([pair], 100),
            lambda pair=pair: ops.pack_positions(pair, 100),
            lambda pair=pair: ops.pack_rising(pair, 0, 50),
        ]
        for call in calls:
            with pytest.raises(IndexError):
                call()
    with pytest.raises(IndexError):
        ops.sum_entries(
            [(np.array([50, 10, 99]), np.ones(3, np.float32))] * 2
            + [(np.array([3, 2**20, 5]), np.ones(3, np.float32))],
            one[:1],
            x,
        )


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 7, 8, 11, 31, 32, 33, 57, 60])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1001, 70_001])
def test_bits(ops: NativeKernels, bits: int, count: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**62, count)
    packed = ops.pack_bits(codes, bits)
    same(packed, PLAIN.pack_bits(codes, bits))
    same(ops.unpack_bits(packed, bits, count), codes & ((1 << bits) - 1))
    same(ops.unpack_bits(packed, bits, count), PLAIN.unpack_bits(packed, bits, count))
    if count:
        with pytest.raises(ValueError, match=r"few|reshape"):
            ops.unpack_bits(packed[:-1], bits, count)


@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (9, 3), (1000, 1), (1000, 249), (70_001, 17_000), (10**6, 1000), (10**7, 3)]
)
def test_rising_indices(ops: NativeKernels, n: int, k: int) -> None:
    indices, low = some_indices(n, k), max(0, (n // k).bit_length() - 1)
    length = k + ((n - 1) >> low) + 1
    packed = ops.pack_rising(indices, low, length)
    same(packed, PLAIN.pack_rising(indices, low, length))
    same(ops.unpack_rising(packed, n, k, low), indices)
    same(ops.unpack_rising(packed, n, k, low), PLAIN.unpack_rising(packed, n, k, low))
    same(ops.pack_positions(indices, n), PLAIN.pack_positions(indices, n))
    bitmap = PLAIN.pack_positions(indices, n)
    same(ops.unpack_positions(bitmap), PLAIN.unpack_positions(bitmap))


@given(packed=st.binary(min_size=1, max_size=60), k=PIECES, low=st.integers(0, 9), n=st.integers(1, 3000))
def test_damaged_indices_are_refused_alike(packed: bytes, k: int, low: int, n: int) -> None:
    found = []
    for ops in (ops_for(np.zeros(1)), PLAIN):
        try:
            found.append(ops.unpack_rising(np.frombuffer(packed, np.uint8), n, k, low).tolist())
        except ValueError as error:
            found.append(str(error) if "payload" in str(error) else "too short")
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [1, 7, 512, 5000, 100_000])
@pytest.mark.parametrize(
    ("s", "key"), [(7, Key(5, 9)), (1, Key(1, 2)), (127, Key(3, 4)), (4, Key(8, 8)), (7, None), (255, Key(1, 1))]
)
def test_levels_of_buckets(ops: NativeKernels, size: int, s: int, key: Key | None) -> None:
    for n in (0, 1, 8, 9, 4097, 70_003):
        x, rank = values(n, 3), np.random.default_rng(0).standard_normal(n).astype(np.float32)
        same(ops.bucket_maxima(x, size), PLAIN.bucket_maxima(x, size))
        rows = []
        for array in (x, rank):
            scales = PLAIN.bucket_maxima(array, size)
            scales[scales < 2.0**-100] = 0
            with PLAIN.quiet():
                packed = PLAIN.pack_rounded(array, scales, size, s, key)
            same(ops.pack_rounded(array, scales, size, s, key), packed)
            rows.append((packed, scales / np.float32(s)))
        for factor in (1.0, 0.5):
            scale = np.array([factor], np.float32)
            same(ops.sum_levels(rows, size, s, scale, x.copy()), PLAIN.sum_levels(rows, size, s, scale, x.copy()))
        same(ops.subtract_levels(x.copy(), *rows[1], size, s), PLAIN.subtract_levels(x.copy(), *rows[1], size, s))


@pytest.mark.parametrize("cost", [0.0, 6.0, 30.0])
@pytest.mark.parametrize("budget", [WireBudget, ValueBudget])
def test_widths_of_entries(ops: NativeKernels, budget: Callable[[int, int], Budget], cost: float) -> None:
    draws = np.random.default_rng(1)
    for n in (1, 40, 3000, 70_003, 200_000):
        x = values(n, 3)
        ties = draws.integers(-4, 5, n).astype(np.float32)
        with_nan, tiny = x.copy(), x * np.float32(1e-40)
        with_nan[n // 2] = np.nan
        for array in (
            x,
            x * np.abs(x) ** 0.2,
            ties,
            np.where(ties == 4, x, 0),
            with_nan,
            tiny,
            np.zeros(n, np.float32),
        ):
            for share in (0.02, 0.3, 3.0):
                limit = budget(n, 40 + int(n * share / 8) if budget is WireBudget else int(n * share))
                ratios = key_ratios(cost)
                asked = array, ratios, limit.most_entries, limit.limit, not limit.fixed
                assert PLAIN.choose_widths(*asked) is None
                found = ops.choose_widths(*asked)
                assert found is not None
                flag, chosen = allocate(PLAIN, array, limit, ratios)
                assert flag == allocate(ops, array, limit, ratios)[0]
                for ours, theirs in zip(found[1], chosen, strict=True):
                    same(ours[0], theirs.indices)
                    same(ours[1], theirs.values)


def test_scales_that_cannot_be_divided_by_give_zeros(ops: NativeKernels) -> None:
    x = values(1000)
    for scale in (1e-45, np.inf, np.nan, 0.0, -1.0):
        assert not ops.pack_rounded(x, np.full(2, scale, np.float32), 512, 7, Key(1, 2)).any()


def test_levels_that_cannot_be_are_refused(ops: NativeKernels) -> None:
    packed, units = np.array([0xFF, 0xFF], np.uint8), np.ones(1, np.float32)
    for act in (
        lambda: ops.sum_levels([(packed, units)], 512, 4, units, np.zeros(4, np.float32)),
        lambda: ops.subtract_levels(np.zeros(4, np.float32), packed, units, 512, 4),
    ):
        with pytest.raises(ValueError, match="above the top level 4"):
            act()
    with pytest.raises(ValueError, match="do not fit"):
        ops.sum_levels([(packed[:1], units)], 512, 7, units, np.zeros(4, np.float32))


@pytest.mark.parametrize("n", [1, 2, 3, 4096, 4097, 300_001])
@pytest.mark.parametrize("last", [1, 7, 127])
def test_lines_through_levels(ops: NativeKernels, n: int, last: int) -> None:
    x = (np.random.default_rng(n).random(n) + 0.3).astype(np.float32) * np.float32(-1) ** np.arange(n, dtype=np.float32)
    line = 0.3, 1.1 / last, last
    codes = PLAIN.nearest_codes(x, *line)
    same(ops.nearest_codes(x, *line), codes)
    same(ops.nearest_codes(x, 0.3, 0.0, last), PLAIN.nearest_codes(x, 0.3, 0.0, last))
    for pair in (line[:2], (3.4e38, 1e37), (-3.0, 0.01)):
        base_and_step = np.array(pair, np.float32)
        with PLAIN.quiet():
            same(ops.code_values(codes, base_and_step, last), PLAIN.code_values(codes, base_and_step, last))
            bits = last.bit_length() + 1
            packed = PLAIN.pack_bits(codes, bits)
            expected = PLAIN.unpack_values(packed, bits, n, base_and_step)
            same(ops.unpack_values(packed, bits, n, base_and_step), expected)
    assert ops.level_sums(x, *line, 0.25) == PLAIN.level_sums(x, *line, 0.25)


@every_array
def test_signs_and_powers(ops: NativeKernels, x: np.ndarray[Any, Any]) -> None:
    x = np.append(np.ascontiguousarray(x).reshape(-1), np.float32([np.inf, -np.inf, 3e38, -1e-45, 0.0, -0.0]))
    for zero in (0, 1):
        same(ops.pack_negative(x, zero), PLAIN.pack_negative(x, zero))
        same(ops.pack_negative(x[:-5], zero), PLAIN.pack_negative(x[:-5], zero))
    same(ops.signs(x), PLAIN.signs(x))
    room = x.copy()
    assert ops.signs(room, room) is room
    same(room, PLAIN.signs(x))
    for offset, key in ((18, Key(5, 9)), (100, Key(1, 2)), (0, Key(0xFFFFFFFF, 3))):
        same(ops.power_codes(x, offset, key), PLAIN.power_codes(x, offset, key))


# Around the terms that one thread folds, and that a block of sums takes.
@pytest.mark.parametrize("size", [1, 2, 3, 5, 512, 2048, 2049, 8193, 32_768, 65_536, 65_537, 300_001, 2**20])
def test_sums_of_magnitudes(ops: NativeKernels, size: int) -> None:
    for n in (0, 1, 9, 8192, 70_003, 300_001):
        x = values(n)
        same(ops.magnitude_sums(x, size, TERMS), PLAIN.magnitude_sums(x, size, TERMS))
        for term in TERMS:
            same(ops.magnitude_sums(x, size, (term,)), PLAIN.magnitude_sums(x, size, (term,)))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_sums_of_magnitudes_show_what_is_not_finite(ops: NativeKernels, bad: float) -> None:
    x = values(70_003)
    x[69_000] = bad
    np.testing.assert_array_equal(ops.magnitude_sums(x, 512, TERMS[:4]), PLAIN.magnitude_sums(x, 512, TERMS[:4]))


@pytest.mark.parametrize("bits", [1, 2, 5, 8])
@pytest.mark.parametrize("size", [1, 7, 8, 512, 5000, 100_000])
def test_codes_of_tables(ops: NativeKernels, bits: int, size: int) -> None:
    draws = np.random.default_rng(bits)
    for n in (0, 1, 8, 9, 4097, 70_003):
        x, buckets = values(n), -(-n // size)
        rows = [
            (
                draws.integers(0, 256, -(-n * bits // 8)).astype(np.uint8),
                draws.standard_normal(buckets << bits).astype(np.float32),
            )
            for _ in range(3)
        ]
        for factor in (1.0, 0.3):
            scale = np.array([factor], np.float32)
            expected = PLAIN.sum_codes(rows, bits, size, scale, x.copy())
            same(ops.sum_codes(rows, bits, size, scale, x.copy()), expected)
        same(ops.sum_codes([], bits, size, np.ones(1, np.float32), x.copy()), np.zeros_like(x))
        for row in rows:
            ours = ops.subtract_codes(x.copy(), row[0], bits, row[1], size)
            same(ours, PLAIN.subtract_codes(x.copy(), row[0], bits, row[1], size))
        if n:
            for short in ((rows[0][0][:-1], rows[0][1]), (rows[0][0], rows[0][1][:-1])):
                with pytest.raises(ValueError, match=r"too few bytes|a value for each code"):
                    ops.subtract_codes(x.copy(), short[0], bits, short[1], size)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 19, 20, 21, 1000, 81_919, 81_921, 300_001])
def test_trits(ops: NativeKernels, count: int) -> None:
    pairs = PLAIN.pack_bits(np.random.default_rng(count).integers(0, 3, count), 2)
    packed = PLAIN.pack_trits(pairs, count)
    same(ops.pack_trits(pairs, count), packed)
    same(ops.unpack_trits(packed, count), PLAIN.unpack_trits(packed, count))
    same(ops.unpack_trits(packed, count), pairs)
    if count:
        filled = pairs.copy()
        filled[-1] |= 0xFF << (2 * count - 8 * (filled.size - 1)) & 0xFF
        same(ops.pack_trits(filled, count), packed)
        damaged = packed.copy()
        damaged[packed.size // 2] = 243
        for each in (ops, PLAIN):
            with pytest.raises(ValueError, match="no radix number"):
                each.unpack_trits(damaged, count)
        with pytest.raises(ValueError, match="too few bytes"):
            ops.unpack_trits(packed[:-1], count)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (10, 3), (1000, 1000), (300_001, 70_000), (2**31, 5)])
def test_strata(ops: NativeKernels, n: int, k: int) -> None:
    same(ops.draw_strata(n, k, Key(17, 4)), PLAIN.draw_strata(n, k, Key(17, 4)))
    same(ops.draw_strata(0, 0, Key(17, 4)), PLAIN.draw_strata(0, 0, Key(17, 4)))


@every_array
@pytest.mark.parametrize("bits", [11, 24])
def test_fixed_unit(ops: NativeKernels, x: np.ndarray[Any, Any], bits: int) -> None:
    same(ops.fixed_unit(x, bits), PLAIN.fixed_unit(x, bits))


# Around what is worked on at once, with a short side in each place; and without one.
PRODUCTS = [
    *[(0, 4, 70), (4, 0, 70), (70, 70, 0), (1, 1, 1), (2, 1, 3), (70, 70, 70)],
    *[(65, 1100, 4), (3, 70_000, 5), (130, 513, 1), (5, 9, 8), (900, 66, 64)],
    *[(4, 600, 1100), (17, 300, 513), (1, 257, 512), (64, 65, 65), (3, 8, 200)],
    *[(300, 4, 1030), (40, 1, 600), (33, 64, 65), (16, 5, 9), (700, 3, 4)],
]


def product_of(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the bodies give, of which there are two for NumPy's arrays."""
    with PLAIN.quiet():
        product: np.ndarray[Any, Any] = Kernels.product(PLAIN, x, y)
        np.testing.assert_array_equal(product, PLAIN.product(x, y))
    return product


@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
@pytest.mark.parametrize("power", [None, 0, 60, -60, -140])
def test_product(ops: NativeKernels, sizes: tuple[int, int, int], power: int | None) -> None:
    rows, depth, columns = sizes
    x, y = values(rows * depth, 1).reshape(rows, depth), values(depth * columns, 2).reshape(depth, columns)
    if power is not None:
        # Otherwise few entries but the largest count.
        draws = np.random.default_rng(3)
        x = np.ldexp(draws.standard_normal(x.shape), power).astype(np.float32)
        y = draws.integers(-2, 3, y.shape).astype(np.float32)
    expected, room = product_of(x, y), np.full(rows * columns, 7, np.float32)
    with PLAIN.quiet():
        same(ops.product(x, y), expected)
        ours = ops.product(np.asfortranarray(x), np.asfortranarray(y), room)
    same(ours, expected)
    assert room.size == 0 or min(sizes) > 64 or np.shares_memory(ours, room)


@pytest.mark.parametrize("sizes", [(65, 1100, 4), (4, 600, 1100), (300, 4, 1030)], ids=str)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_product_of_what_is_not_finite(ops: NativeKernels, sizes: tuple[int, int, int], bad: float) -> None:
    rows, depth, columns = sizes
    for place in range(2):
        factors = [values(rows * depth, 1).reshape(rows, depth), values(depth * columns, 2).reshape(depth, columns)]
        factors[place][1, 2] = bad
        with PLAIN.quiet():
            expected, ours = product_of(*factors), ops.product(*factors)
        # The bits of NaN depend on the order, and say nothing.
        np.testing.assert_array_equal(ours, expected)
        known = ~np.isnan(expected)
        same(ours[known], expected[known])


def test_product_of_matrices_that_do_not_fit(ops: NativeKernels) -> None:
    x = np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match="do not fit each other"):
        ops.product(x, x)
    with pytest.raises(ValueError, match="does not fit its room"):
        ops.product(x, np.ones((4, 2), np.float32), np.zeros(5, np.float32))


def test_every_operation_in_cpp_is_compared_here() -> None:
    source = Path(__file__).read_text()
    helpers = {"as_numpy", "from_numpy", "view", "views", "room", "number"}
    names = {
        name for kind in (NativeLevels, NativeCodes, NativeKernels) for name in vars(kind) if not name.startswith("_")
    } - helpers
    assert [name for name in sorted(names) if f"ops.{name}(" not in source or f"PLAIN.{name}(" not in source] == []


def test_tensors_of_torch_share_their_memory() -> None:
    x, y = torch.arange(100.0), torch.ones(100)
    ops, out = ops_for(x), torch.empty(100)
    assert isinstance(ops, NativeKernels)
    assert ops.scale_add(x, y, 1.0, out) is out
    assert torch.equal(out, x + 1)
    assert ops.largest(x, 3).tolist() == [97, 98, 99]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8], ids=str)
def test_entries_of_other_dtypes_are_taken_by_torch(dtype: torch.dtype) -> None:
    x = torch.arange(10).to(dtype)
    assert ops_for(x).take(x, torch.tensor([3, 1])).tolist() == [3, 1]


def test_what_was_asked_for_is_what_runs() -> None:
    assert native.kernels.isa() in INSTRUCTION_SETS
    assert native.kernels.isa() == os.environ.get("HVD_COMPRESS_ISA", native.kernels.isa())


@pytest.mark.parametrize(("isa", "threads"), list(zip(INSTRUCTION_SETS, (1, 2, 3), strict=True)))
def test_every_instruction_set_of_this_processor(isa: str, threads: int) -> None:
    """All of this file, and the bytes and residuals of every codec on every array."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    avx2 = ["avx2", "bmi2"]
    needs = {"portable": [], "avx2": avx2, "avx512": [*avx2, "avx512f", "avx512bw", "avx512dq", "avx512vl"]}[isa]
    contract = f"{Path(__file__).parent / 'test_contract.py'}::test_backends_give_numpy_s_bytes_and_residuals"
    argv = [sys.executable, "-m", "pytest", "-q", "-x", __file__, contract, "-k", "not instruction_set"]
    env = {
        **os.environ,
        "HVD_COMPRESS_ISA": isa,
        "HVD_COMPRESS_THREADS": str(threads),
        "HVD_COMPRESS_TEST_BACKENDS": "numpy,native",
    }
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600)
    if set(needs) <= set(flags):
        assert done.returncode == 0, done.stdout
    else:
        assert "HVD_COMPRESS_ISA must be one of this processor's" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({"HVD_COMPRESS_THREADS": "3", "OMP_NUM_THREADS": "7"}, 3),
        ({"OMP_NUM_THREADS": "7"}, 7),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1000"}, 1),
        ({}, len(os.sched_getaffinity(0))),
        ({"HOROVOD_LOCAL_SIZE": "1"}, len(os.sched_getaffinity(0))),
    ],
    ids=str,
)
def test_threads(variables: dict[str, str], threads: int) -> None:
    assert native.thread_count(variables) == threads


@pytest.mark.parametrize("wrong", ["0", "-1", "two", ""])
def test_wrong_threads(wrong: str) -> None:
    with pytest.raises(ValueError, match="HVD_COMPRESS_THREADS must be a number >= 1"):
        native.thread_count({"HVD_COMPRESS_THREADS": wrong})


def test_without_the_extension_everything_works() -> None:
    code = (
        "import numpy as np, hvd_compress as hc; from hvd_compress import native; assert native.kernels is None; "
        "x = np.float32([1, 3, 2]); print(hc.ops_for(x).largest(x, 2).tolist())"
    )
    env = {**os.environ, "HVD_COMPRESS_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[1, 2]\n", done.stderr


def test_a_child_process_makes_threads_of_its_own() -> None:
    code = (
        "import os, numpy as np; from hvd_compress import native; k = native.kernels; k.set_threads(2)\n"
        "x = np.arange(200000, dtype=np.float32); assert k.largest(x, 1)[0] == 199999\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if k.largest(x, 1)[0] == 199999 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
