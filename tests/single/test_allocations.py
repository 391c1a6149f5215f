"""What compression takes of memory: the state, at most; no step makes arrays of the gradient's size."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hvd_compress.policy import compose, compose_config
from tests.cases import OneRank, required_backends

ROOT = Path(__file__).parents[2]
ENTRIES = 1 << 22
SHAPES = {"a": (700, 500), "b": (300, 400), "c": (64, 32, 3, 3)}
BYTES = 4 * sum(int(np.prod(shape)) for shape in SHAPES.values())

needs_kernels = pytest.mark.skipif(
    "native" not in required_backends(), reason="the readable bodies make arrays of the gradient's size"
)


def constant_scale() -> float:
    """The scale of a loss scaler that never changes it."""
    return 4.0


@needs_kernels
@pytest.mark.parametrize("scale", [None, constant_scale], ids=["", "scaled"])
@pytest.mark.parametrize(
    ("config", "bytes_per_entry"),
    [
        ("topk", 1),
        ("topk:error_feedback=false", 1),
        ("dgc", 1),
        ("randomk", 1),
        ("qsgd", 1),
        ("qsgd:error_feedback=true", 1),
        ("topk_qsgd", 1),
        # The candidates for its bits: their indices and values, once more by width.
        ("jointsq", 2),
        ("jointsq:error_feedback=false", 2),
    ],
)
def test_no_step_makes_an_array_of_the_gradients_size(
    config: str, bytes_per_entry: int, scale: Callable[[], float] | None
) -> None:
    # NumPy tells tracemalloc of its arrays; the C++ kernels' own room, a few blocks for each thread, is not among them.
    rank = OneRank(compose_config(config), loss_scale=scale)
    gradient = np.random.default_rng(0).standard_normal((4, ENTRIES // 4)).astype(np.float32)
    room = gradient.copy()
    for step in range(6):
        room[...] = gradient
        tracemalloc.start()
        result = rank.step({"w": room})["w"]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert np.shares_memory(result, room)
        # Under a loss scaler the second set of arrays is made at the second step.
        if step >= 2:
            assert peak < bytes_per_entry * ENTRIES + rank.stats.step.sent_bytes


@pytest.mark.parametrize(
    ("config", "scale", "copies"),
    [
        ("topk:density=0.1", None, 1),
        ("topk:density=0.1", constant_scale, 2),
        ("qsgd:bits=3,error_feedback=true", None, 1),
        ("dgc:density=0.1", None, 2),
        ("dgc:density=0.1", constant_scale, 4),
        ("topk:density=0.1,error_feedback=false", constant_scale, 0),
        ("none", constant_scale, 0),
    ],
)
def test_statistics_say_how_much_memory_the_state_takes(
    config: str, scale: Callable[[], float] | None, copies: int
) -> None:
    """F103."""
    rank = OneRank(compose_config(config), loss_scale=scale)
    assert rank.stats.state_nbytes == 0
    for step in range(4):
        generator = np.random.default_rng(step)
        rank.step({name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()})
        assert rank.stats.state_nbytes == copies * BYTES
    rank.session.settle()
    assert rank.stats.state_nbytes == copies * BYTES
    assert json.loads(json.dumps(rank.stats.as_dict()))["state_nbytes"] == copies * BYTES
    kept = rank.session.state_dict(np.copy).values()
    saved = sum(array.nbytes for tensor in kept for array in tensor["state"].values())
    assert saved == (copies * BYTES if scale is None else copies * BYTES // 2)


def test_what_tensors_that_go_dense_keep_counts_too() -> None:
    # Small tensors have DGC's momentum, dense.
    rank = OneRank(compose("dgc", density=0.1))
    rank.step({"w": np.ones((64, 32), np.float32), "b": np.ones(50, np.float32), "half": np.ones(8, np.float16)})
    assert rank.stats.state_nbytes == 4 * (2 * 64 * 32 + 50 + 8)


PEAK = """
import sys
import numpy as np
from hvd_compress.policy import compose_config
from tests.cases import OneRank

def memory(what):
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))

config, scaled = sys.argv[1], sys.argv[2] == "True"
# Start the threads, and load what is loaded late.
OneRank(compose_config(config)).step({"w": np.ones((2000, 100), np.float32)})
rank = OneRank(compose_config(config), loss_scale=(lambda: 4.0) if scaled else None)
generator = np.random.default_rng(0)
gradients = {str(i): generator.standard_normal((1024, 1024 * i), np.float32) for i in (1, 3, 4, 8)}
before = memory("VmRSS")
for step in range(4):
    rank.step(gradients)
    for gradient in gradients.values():
        gradient += np.float32(1.0)
print(memory("VmHWM") - before, sum(g.nbytes for g in gradients.values()), rank.stats.step.sent_bytes)
"""


@needs_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("config", "scaled", "copies"),
    [
        ("topk", False, 1.1),
        ("qsgd:error_feedback=true", False, 1.1),
        ("topk", True, 2.1),
        ("dgc", False, 2.1),
        ("dgc", True, 4.1),
    ],
)
def test_peak_memory_is_that_of_the_state(config: str, scaled: bool, copies: float) -> None:
    """F103: beside the state there is what was sent, and what came back of it."""
    command = [sys.executable, "-c", PEAK, config, str(scaled)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, cwd=ROOT)
    peak, dense, sent = map(int, done.stdout.split())
    assert dense == 2**26
    assert peak <= copies * dense + 2 * sent
