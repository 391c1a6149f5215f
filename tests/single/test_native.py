"""The C++ kernels give the bits of the bodies that they replace, with every instruction set and number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hvd_compress import native
from hvd_compress.ops import ops_for
from hvd_compress.ops._numpy import NumpyOps
from hvd_compress.ops.native import NativeKernels
from tests.cases import ARRAYS

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
def test_all_finite(ops: NativeKernels, x: np.ndarray[Any, Any]) -> None:
    assert ops.all_finite(x)
    for bad in (np.inf, -np.inf, np.nan):
        for place in {0, x.size // 2, x.size - 1} if x.size else ():
            damaged = np.ascontiguousarray(x).reshape(-1).copy()
            damaged[place] = bad
            assert not ops.all_finite(damaged)


@pytest.mark.parametrize("n", SIZES)
def test_check_word(ops: NativeKernels, n: int) -> None:
    words = np.random.default_rng(n).integers(-(2**31), 2**31, n).astype(np.int32)
    assert int(ops.check_word(words)) == int(PLAIN.check_word(words))


@every_array
def test_counts_and_bounds(ops: NativeKernels, x: np.ndarray[Any, Any]) -> None:
    x = np.ascontiguousarray(x).reshape(-1)
    bits = PLAIN.magnitude_bits(x)
    counts = native.kernels.count_magnitudes(x, 18, 1 << 13)
    np.testing.assert_array_equal(counts, np.bincount(bits >> 18, minlength=1 << 13))
    for least in (0, 1, 0x3F800000, 0x7F800000):
        np.testing.assert_array_equal(native.kernels.at_least(x, least), np.flatnonzero(bits >= least))


def test_tensors_of_torch_share_their_memory() -> None:
    x, y = torch.arange(100.0), torch.ones(100)
    ops, out = ops_for(x), torch.empty(100)
    assert isinstance(ops, NativeKernels)
    assert ops.scale_add(x, y, 1.0, out) is out
    assert torch.equal(out, x + 1)
    assert ops.largest(x, 3).tolist() == [97, 98, 99]


def test_what_was_asked_for_is_what_runs() -> None:
    assert native.kernels.isa() in INSTRUCTION_SETS
    assert native.kernels.isa() == os.environ.get("HVD_COMPRESS_ISA", native.kernels.isa())


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_every_instruction_set_of_this_processor(isa: str) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    needs = {"portable": [], "avx2": ["avx2"], "avx512": ["avx512f", "avx512bw", "avx512dq", "avx512vl"]}[isa]
    argv = [sys.executable, "-m", "pytest", "-q", "-x", __file__, "-k", "not instruction_set"]
    env = {**os.environ, "HVD_COMPRESS_ISA": isa}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
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
