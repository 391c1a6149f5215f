"""On a device: what `compress` does there never waits for it, and `decompress` waits once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hvd_compress import Codec, Reduction, TensorSpec
from hvd_compress.exchange import receive, send
from hvd_compress.ops._device import DeviceOps
from tests.cases import CODECS, SITE, LoopbackCollective, label, ops_of, to_backend, to_numpy
from tests.devices import device

FIXED = [codec for codec in CODECS if codec.fixed_size]
GATHER = [codec for codec in FIXED if codec.reduction is Reduction.GATHER]
SHAPES = [(0, 4), (1, 1), (40, 30), (300, 250)]

WAITING = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "_unique2",
}
"""Operations that make the host wait for a GPU, because it gets a number or a size from there."""


class Waiting(TorchDispatchMode):
    """Counts the operations after which the host would have waited, and the tensors that came from its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[str] = []
        self.copied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name.startswith("index") and len(args) > 1 and isinstance(args[1], list) else []
        by_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
        if name in WAITING or by_mask:
            self.waited.append(name)
        self.copied += name.startswith("lift_fresh")
        return func(*args, **(kwargs or {}))


def gradient(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: bool(x.sum() > 0),
        lambda x: float(x[0]),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_fill_(x > 0, 1).unique(),
        lambda x: torch.bincount(x.to(torch.int32).abs()),
        lambda x: x.__setitem__(x > 0, 0.0),
    ],
)
def test_waiting_is_noticed(wait: Any) -> None:
    with Waiting() as mode:
        wait(torch.arange(5.0))
    assert mode.waited


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("codec", FIXED, ids=label)
def test_compress_never_waits_for_the_device(
    codec: Codec, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps, of which one is not finite; the second and third overwrite the state in place."""
    ops, numpy = ops_of("device"), ops_of("numpy")
    uploads: list[Any] = []
    monkeypatch.setattr(DeviceOps, "upload", lambda self, x: uploads.append(x) or x.to(self.device))
    spec = TensorSpec(shape, "float32")
    state, expected = codec.init(ops, spec), codec.init(numpy, spec)
    ours, theirs = LoopbackCollective(), LoopbackCollective()
    for step in range(3):
        x = gradient(shape, step)
        x[..., :1] = np.nan if step == 1 else x[..., :1]
        site, on_device = SITE._replace(step=step), to_backend("device", x)
        uploads.clear()
        with Waiting() as mode:
            array, _, state = send(codec, ops, on_device, state, site, ours, state if step else None)
        assert mode.waited == []
        # A tensor that is made of numbers comes from the host's memory.
        assert mode.copied == len(uploads)
        reduced, _, expected = send(codec, numpy, x, expected, site, theirs, expected if step else None)
        np.testing.assert_array_equal(to_numpy(array), to_numpy(reduced))
        assert {key: to_numpy(value).tobytes() for key, value in state.items()} == {
            key: to_numpy(value).tobytes() for key, value in expected.items()
        }
    assert [to_numpy(row).tobytes() for row in ours.buffers.get(SITE.name, [])] == [
        row.tobytes() for row in theirs.buffers.get(SITE.name, [])
    ]


@pytest.mark.skipif(device() == "cpu", reason="PyTorch's own look-out for waiting hosts needs a GPU: --device cuda")
@pytest.mark.parametrize("codec", FIXED, ids=label)
def test_pytorch_does_not_see_compress_wait(codec: Codec) -> None:
    ops, spec = ops_of("device"), TensorSpec((300, 250), "float32")
    gradients = [to_backend("device", gradient(spec.shape, step)) for step in range(3)]
    state = codec.init(ops, spec)
    for step, x in enumerate(gradients):
        # What is compiled and allocated in the first step may wait.
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            state = send(codec, ops, x, state, SITE._replace(step=step), LoopbackCollective(), state)[2]
        finally:
            torch.cuda.set_sync_debug_mode("default")
