"""Triton's kernels against NumPy's bodies: without a GPU as Python, and compiled for one only to look at the code."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_compress import DGC, QSGD, Codec, ErrorFeedback, JointSQ, RandomK, TopK, TopKQSGD
from hvd_compress.generator import Key
from hvd_compress.ops._numpy import NumpyOps
from tests.cases import ARRAYS, label, ops_of, to_backend, to_numpy, triton_ops
from tests.single.test_contract import run
from tests.single.test_device import Exchange

if not importlib.util.find_spec("triton") and os.environ.get("HVD_COMPRESS_TEST_TRITON") != "1":
    pytest.skip("triton is not installed: its kernels are not tested", allow_module_level=True)

ROOT = Path(__file__).parents[2]
NUMPY, KEY = NumpyOps(), Key(0x9E3779B9, 12345)
N = 300


@pytest.fixture
def ops() -> Any:
    """Operations with blocks so small that a few hundred entries have many of them."""
    found = triton_ops()
    found.block = 128  # type: ignore[attr-defined]
    return found


def gpu(x: Any) -> Any:
    return to_backend("triton", np.asarray(x))


def floats(kind: str, n: int = N) -> np.ndarray[Any, Any]:
    draws = np.random.default_rng(n)
    normal = draws.standard_normal(n)
    kinds: dict[str, Any] = {
        "normal": normal,
        "ties": draws.integers(-3, 4, n),
        "equal": np.full(n, -1.5),
        "zeros": np.where(draws.random(n) < 0.5, 0.0, -0.0),
        "mostly zeros": np.where(draws.random(n) < 0.9, 0.0, normal),
        "denormals": draws.integers(-9, 9, n) * 1e-45,
        "huge": normal * 1e38,
        "some are not finite": np.where(draws.random(n) < 0.1, np.nan, np.where(draws.random(n) < 0.1, np.inf, normal)),
        "powers": 2.0 ** draws.integers(-140, 127, n),
    }
    with np.errstate(over="ignore"):
        return kinds[kind].astype(np.float32)


KINDS = ["normal", "ties", "equal", "zeros", "mostly zeros", "denormals", "huge", "some are not finite", "powers"]
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@pytest.mark.parametrize("k", [1, 30, N - 1])
def test_largest(kind: str, k: int, ops: Any) -> None:
    x = floats(kind)
    assert to_numpy(ops.largest(gpu(x), k)).tolist() == NUMPY.largest(x, k).tolist()


def test_largest_of_all_that_are_no_numbers(ops: Any) -> None:
    """The patterns of NaN go up to the largest of 31 bits."""
    patterns = np.array([0x7FFFFFFF, 0x7FC00000, 0x7FFFFFF8, 0x7FFFFFF0, 0x7FFFFFFF, 1, 0x7F800000], np.int32)
    x = np.tile(patterns, 30).view(np.float32)
    for k in (1, 60, 70, 91, 150, 209):
        assert to_numpy(ops.largest(gpu(x), k)).tolist() == NUMPY.largest(x, k).tolist()


@kinds
@pytest.mark.parametrize(("decay", "given"), [(1.0, False), (0.3, True)])
def test_accumulate_largest(kind: str, decay: float, given: bool, ops: Any) -> None:
    x, residual = floats(kind), floats("normal")[::-1].copy()
    room = ops.zeros(N) if given else None
    with np.errstate(all="ignore"):
        expected, indices = NUMPY.accumulate_largest(x, residual, decay, 40)
    total, found = ops.accumulate_largest(gpu(x), gpu(residual), decay, 40, room)
    assert to_numpy(total).tobytes() == expected.tobytes()
    assert to_numpy(found).tolist() == indices.tolist()
    assert not given or total is room


def test_accumulated_into_the_residual_s_own_place_is_a_new_array(ops: Any) -> None:
    """A step that turns out not to be finite must leave it as it was."""
    x, residual = gpu(floats("normal")), gpu(floats("ties"))
    total, _ = ops.accumulate_largest(x, residual, 1.0, 40, residual)
    assert to_numpy(residual).tobytes() == floats("ties").tobytes()
    assert to_numpy(total).tobytes() == (floats("normal") + floats("ties")).tobytes()


@kinds
@pytest.mark.parametrize("size", [2, 7, 64, 300, 512])
def test_bucket_maxima(kind: str, size: int, ops: Any) -> None:
    x = floats(kind)
    assert to_numpy(ops.bucket_maxima(gpu(x), size)).tobytes() == NUMPY.bucket_maxima(x, size).tobytes()


FINITE = [kind for kind in KINDS if kind != "some are not finite"]


def scales_of(x: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """As QSGD takes them: not so small that dividing by them could overflow."""
    maxima = NUMPY.bucket_maxima(x, size)
    return np.where(maxima < 2.0**-100, np.float32(0), maxima)


@pytest.mark.parametrize("kind", FINITE)
@pytest.mark.parametrize("s", [1, 3, 4, 7, 100, 127])
@pytest.mark.parametrize("size", [1, 7, 512])
@pytest.mark.parametrize("key", [None, KEY], ids=["nearest", "at random"])
def test_pack_rounded(kind: str, s: int, size: int, key: Key | None, ops: Any) -> None:
    x = floats(kind)
    scales = scales_of(x, size)
    expected = NUMPY.pack_rounded(x, scales, size, s, key)
    assert to_numpy(ops.pack_rounded(gpu(x), gpu(scales), size, s, key)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("s", [1, 3, 4, 127])
@pytest.mark.parametrize("size", [7, 512])
def test_sum_and_subtract_levels(s: int, size: int, ops: Any) -> None:
    arrays = [floats(kind) for kind in ("normal", "mostly zeros", "ties")]
    rows = []
    for x in arrays:
        scales = scales_of(x, size)
        rows.append((NUMPY.pack_rounded(x, scales, size, s, KEY), NUMPY.divide(scales, s)))
    factor, there = np.float32([0.3]), [(gpu(packed), gpu(units)) for packed, units in rows]
    expected = NUMPY.sum_levels(rows, size, s, factor, np.ones(N, np.float32))
    total = ops.sum_levels(there, size, s, gpu(factor), gpu(np.ones(N, np.float32)))
    assert to_numpy(total).tobytes() == expected.tobytes()
    left = ops.subtract_levels(gpu(arrays[0]), *there[1], size, s)
    assert to_numpy(left).tobytes() == NUMPY.subtract_levels(arrays[0].copy(), *rows[1], size, s).tobytes()


def test_a_level_that_does_not_exist_is_refused(ops: Any) -> None:
    packed, units = gpu(np.full(4, 0x77, np.uint8)), gpu(np.ones(1, np.float32))
    with pytest.raises(ValueError, match="a code is above the top level 4"):
        ops.sum_levels([(packed, units)], 512, 4, gpu(np.float32([1])), gpu(np.zeros(8, np.float32)))


@pytest.mark.parametrize("n", [8, 300, 5000, 2**20, 2**31, 2**32])
@pytest.mark.parametrize("k", [1, 5, 8, 200])
def test_rising_indices_become_numpy_s_bytes_and_come_back(n: int, k: int, ops: Any) -> None:
    if k > n:
        n = 2 * k
    indices = np.unique(np.random.default_rng(k).integers(0, n, 2 * k))[:k].astype(np.int64)
    k = indices.size
    for low in {max(0, (n // k).bit_length() - 1), 0 if n < 10_000 else 20}:
        length = k + ((n - 1) >> low) + 1
        expected = NUMPY.pack_rising(indices, low, length)
        packed = ops.pack_rising(gpu(indices), low, length)
        assert to_numpy(packed).tobytes() == expected.tobytes()
        assert to_numpy(ops.unpack_rising(packed, n, k, low)).tolist() == indices.tolist()


def test_bytes_that_are_no_rising_indices_are_refused_as_by_numpy(ops: Any) -> None:
    draws, n, k, low = np.random.default_rng(3), 5000, 100, 5
    indices = np.sort(draws.choice(n, k, replace=False))
    packed = NUMPY.pack_rising(indices, low, k + ((n - 1) >> low) + 1)
    for _ in range(40):
        changed = packed.copy()
        changed[draws.integers(packed.size)] ^= 1 << int(draws.integers(8))
        outcomes = []
        for where, array in ((NUMPY, changed), (ops, gpu(changed))):
            try:
                outcomes.append(to_numpy(where.unpack_rising(array, n, k, low)).tolist())
            except ValueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


def test_entries_are_added_where_they_belong(ops: Any) -> None:
    x, indices = floats("normal"), np.arange(0, N, 2)
    values = floats("ties")[: indices.size]
    expected = NUMPY.scatter_add(x.copy(), indices, values)
    assert to_numpy(ops.scatter_add(gpu(x), gpu(indices), gpu(values))).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["largest", "bucket_maxima", "pack_rising", "scatter_add"])
def test_what_kernels_do_not_take_is_left_to_the_body(name: str, ops: Any) -> None:
    apart = gpu(np.repeat(floats("normal"), 2))[::2]
    calls: dict[str, tuple[Any, ...]] = {
        "largest": (apart, 5),
        "bucket_maxima": (apart, 7),
        "pack_rising": (gpu(np.arange(20).repeat(2))[::2], 3, 40),
        "scatter_add": (apart, gpu(np.arange(3)), gpu(floats("ties")[:3])),
    }
    ours, theirs = getattr(ops, name)(*calls[name]), getattr(ops_of("device"), name)(*calls[name])
    assert to_numpy(ours).tobytes() == to_numpy(theirs).tobytes()


USERS = [
    ErrorFeedback(TopK(density=0.1)),
    ErrorFeedback(TopK(density=0.1, value_dtype="float16"), decay=0.5),
    QSGD(bits=8, bucket_size=7, seed=1234),
    QSGD(bits=2, bucket_size=0, rounding="nearest"),
    ErrorFeedback(QSGD(bits=3)),
    TopKQSGD(density=0.1),
    DGC(density=0.1, nesterov=True),
    ErrorFeedback(JointSQ(bits_per_entry=2.0)),
    ErrorFeedback(RandomK(density=0.1)),
]


@pytest.mark.parametrize("name", ["two", "ties", "matrix", "denormals", "float16"])
@pytest.mark.parametrize("codec", USERS, ids=label)
def test_codecs_send_and_keep_what_they_do_with_numpy(codec: Codec, name: str) -> None:
    array = ARRAYS[name]
    gradients = [array, np.asarray(-2 * array), np.asarray(array * 0)]
    wires, decoded, state = run(codec, "triton", gradients)
    expected, expected_decoded, expected_state = run(codec, "numpy", gradients)
    assert [wire.hex() for wire in wires] == [wire.hex() for wire in expected]
    np.testing.assert_array_equal(decoded, expected_decoded)
    assert {key: value.tobytes() for key, value in state.items()} == {
        key: value.tobytes() for key, value in expected_state.items()
    }


@pytest.mark.parametrize("codec", USERS, ids=label)
def test_what_ranks_sent_is_added_up_as_with_numpy(codec: Codec) -> None:
    gradients = [floats(kind, 400).reshape(20, 20) for kind in ("normal", "ties", "mostly zeros")]
    ours, theirs = (Exchange(codec, backend, gradients) for backend in ("triton", "numpy"))
    assert to_numpy(ours.received()).tobytes() == theirs.received().tobytes()


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hvd_compress.ops import triton_entries, triton_levels, triton_selection

FLOATS = {"x", "residual", "total", "values", "maxima", "factors", "units", "factor"}
POINTERS = {"indices": "*i64", "packed": "*u8"}
NUMBERS = {"n", "k", "number", "shift", "before", "size", "nbytes", "k0", "k1", "low", "high_start", "split", "buckets"}
FLAGS = {"FIRST": False, "ADD": True, "SUBTRACT": False, "SCALE": True, "RANDOM": True, "S": 7, "BITS": 4, "ROWS": 2}

for module in (triton_selection, triton_levels, triton_entries):
    for name in module.__all__:
        kernel = getattr(module, name)
        if not hasattr(kernel, "arg_names"):
            continue
        blocks = {"BLOCK": 1024, "GROUPS": 128, "COLUMNS": 512, **FLAGS}
        constants = {arg: blocks[arg] for arg in kernel.arg_names if arg in blocks}
        signature = {}
        for arg in kernel.arg_names:
            plain = "i32" if arg in NUMBERS else "fp32" if arg == "decay" else POINTERS.get(arg, "*i32")
            signature[arg] = "constexpr" if arg in constants else "*fp32" if arg in FLOATS else plain
        source = ASTSource(kernel, signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
        print("KERNEL", name)
        print(compiled.asm["ptx"])
"""


def test_compiled_for_a_gpu_they_round_every_product_and_sum(tmp_path: Path) -> None:
    """No product is fused with a sum, no number below 2**-126 is taken for zero, and nothing is approximated."""
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    argv = [sys.executable, "-c", COMPILE]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    codes = dict(re.findall(r"^KERNEL (\w+)\n(.*?)(?=^KERNEL|\Z)", done.stdout, re.MULTILINE | re.DOTALL))
    assert len(codes) == 10
    for name, code in codes.items():
        # The largest integer not above a number that small is 0 in any case: none of them is negative.
        exact = code.replace("cvt.rmi.ftz", "cvt.rmi")
        assert not re.findall(r"\bfma\.\S*f32|\bmad\.\S*f32|\.ftz|\.approx|\.full\b", exact), name
    assert all(re.search(r"\bmul\.\S*f32", codes[name]) for name in ("count_reaching", "pack_rounded", "add_levels"))
