"""Twenty steps in place and in C++ equal those of the readable bodies, which make a new array for everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress import Codec, Site
from hvd_compress.exchange import receive, send, spec_of
from hvd_compress.ops._numpy import NumpyOps
from hvd_compress.policy import BySize, compose_config
from tests.cases import LoopbackCollective, OneRank, ops_of, required_backends

PLAIN = NumpyOps()
STEPS = 20
SHAPES = {"embedding": (400, 200), "conv": (64, 32, 3, 3), "odd": (33, 101)}

Array = np.ndarray[Any, Any]


class Plain:
    """One rank's exchanges, one after another and nothing in place."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._steps = 0
        self.states: dict[str, Any] = {}

    def step(self, gradients: dict[str, Array]) -> dict[str, Array]:
        """Return the combined gradients."""
        results = {}
        for name, gradient in gradients.items():
            state = self.states.get(name) or self._codec.init(PLAIN, spec_of(PLAIN, gradient))
            site, collective = Site(name, self._steps), LoopbackCollective()
            reduced, pending, state = send(self._codec, PLAIN, gradient, state, site, collective)
            results[name], self.states[name] = receive(PLAIN, reduced, pending, state, collective)
        self._steps += 1
        return results


def noise(step: int, name: str) -> Array:
    """Numbers of many magnitudes, some of them equal."""
    generator = np.random.default_rng([step, len(name)])
    return (generator.standard_normal(SHAPES[name]) ** 3).round(2).astype(np.float32)


def bits(state: Any) -> dict[str, bytes]:
    """The bytes of a state's arrays."""
    return {key: array.tobytes() for key, array in state.items()}


@pytest.mark.parametrize("backend", [name for name in required_backends() if name in ("numpy", "native")])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
@pytest.mark.parametrize(
    "config",
    [
        "topk:density=0.02",
        "topk:density=0.02,value_dtype=float16",
        "topk_qsgd:density=0.05",
        "qsgd:error_feedback=true",
        "randomk:density=0.1",
        "jointsq:bits_per_entry=1.0",
        "dgc:density=0.02,nesterov=true,warmup_steps=6",
    ],
)
def test_fast_path_equals_the_plain_one_at_every_step(backend: str, config: str, scaled: bool) -> None:
    """F017: a difference would grow, because every gradient depends on the steps before."""
    policy: BySize = compose_config(config)
    fast, plain = OneRank(policy, ops_of(backend), (lambda: 4.0) if scaled else None), Plain(policy.codec)
    weights = {name: (np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for name, shape in SHAPES.items()}
    for step in range(STEPS):
        ours, theirs = ({name: noise(step, name) + pair[i] for name, pair in weights.items()} for i in range(2))
        ours, theirs = fast.step(ours), plain.step(theirs)
        fast.session.settle()
        for name, (mine, other) in weights.items():
            mine -= np.float32(0.1) * ours[name]
            other -= np.float32(0.1) * theirs[name]
            assert mine.tobytes() == other.tobytes()
            states = fast.session.slots[name].state, plain.states[name]
            assert bits(states[0]) == bits(states[1]) != {}
    assert all(pair[0].any() for pair in weights.values())
