"""On a device: what `compress` does there never waits for it, and `decompress` waits once."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hvd_compress import Codec, Reduction, TensorSpec
from hvd_compress.chunks import Chunked
from hvd_compress.exchange import receive, send
from hvd_compress.ops._torch import TorchOps, uses_triton
from hvd_compress.ops.device import DeviceOps
from hvd_compress.ops.rows import SEAL_NBYTES
from tests.cases import (
    CODECS,
    SITE,
    LoopbackCollective,
    advance,
    label,
    ops_of,
    required_backends,
    to_backend,
    to_numpy,
)
from tests.devices import device

FIXED = [codec for codec in CODECS if codec.fixed_size]
GATHER = [codec for codec in FIXED if codec.reduction is Reduction.GATHER]
SHAPES = [(0, 4), (1, 1), (40, 30)]

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


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What comes from the host's memory without the host having to wait."""
    found: list[Any] = []
    monkeypatch.setattr(DeviceOps, "upload", lambda self, x: found.append(x) or x.to(self.device))
    return found


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
    codec: Codec, shape: tuple[int, ...], uploads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps, of which one is not finite; the second and third overwrite the state in place."""
    ops, numpy = ops_of("device"), ops_of("numpy")
    # On the CPU no operation tells of it.
    monkeypatch.delattr(TorchOps, "to_list")
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
@pytest.mark.parametrize("backend", [name for name in ("device", "triton") if name in required_backends()])
@pytest.mark.parametrize("codec", FIXED, ids=label)
def test_pytorch_does_not_see_compress_wait(codec: Codec, backend: str) -> None:
    ops, spec = ops_of(backend), TensorSpec((300, 250), "float32")
    gradients = [to_backend("device", gradient(spec.shape, step)) for step in range(3)]
    state = codec.init(ops, spec)
    for step, x in enumerate(gradients):
        # What is compiled and allocated in the first step may wait.
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            state = send(codec, ops, x, state, SITE._replace(step=step), LoopbackCollective(), state)[2]
        finally:
            torch.cuda.set_sync_debug_mode("default")


class Exchange:
    """What some ranks sent of a gradient each, and what one of them makes of it."""

    def __init__(self, codec: Codec, backend: str, gradients: list[Any]) -> None:
        self.ops, self.codec = ops_of(backend), codec
        self.rows = LoopbackCollective()
        self.state = codec.init(self.ops, TensorSpec(tuple(gradients[0].shape), "float32"))
        self.sent = []
        for rank, x in enumerate(gradients):
            site = SITE._replace(rank=rank, world_size=len(gradients))
            array = to_backend(backend, x)
            self.reduced, self.pending, state = send(codec, self.ops, array, self.state, site, self.rows)
            self.sent.append(self.pending)
        if codec.reduction is Reduction.TWO_PHASE:
            self.state = state

    def received(self) -> Any:
        advance(self.sent)
        return receive(self.ops, self.reduced, self.pending, self.state, self.rows)[0]

    def outcome(self, row: bytes) -> list[float] | str:
        """What comes of bytes in the place of the first rank's row: an array, or an error."""
        buffers = self.rows.buffers[SITE.name]
        own, buffers[0] = buffers[0], self.ops.constant(row, "uint8")
        try:
            return to_numpy(self.received()).view(np.int32).tolist()  # type: ignore[no-any-return]
        except ValueError as error:
            return str(error)
        finally:
            buffers[0] = own


RANKS, PIECES = 3, 2


@pytest.mark.parametrize("codec", FIXED, ids=label)
def test_decompress_waits_once_at_most(codec: Codec, uploads: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered rows are checked together; JointSQ reads in each how long its parts are, pieces have flags."""
    gradients = [gradient((40, 30), rank) for rank in range(RANKS)]
    ours, theirs = (Exchange(codec, backend, gradients) for backend in ("device", "numpy"))
    uploads.clear()
    with Waiting() as mode:
        monkeypatch.setattr(TorchOps, "to_list", lambda self, x: mode.waited.append("to_list") or x.tolist())
        result = ours.received()
    before = ["to_list"] * RANKS if "jointsq" in label(codec) else []
    before += ["_local_scalar_dense"] * RANKS * PIECES if isinstance(codec, Chunked) else []
    assert mode.waited == ([*before, "_local_scalar_dense"] if codec in GATHER else [])
    assert mode.copied == len(uploads)
    np.testing.assert_array_equal(to_numpy(result), theirs.received())


@pytest.mark.parametrize("sealed_again", [False, True], ids=["damaged on the way", "sent like that"])
@pytest.mark.parametrize("codec", GATHER, ids=label)
def test_whatever_arrives_means_the_same_on_a_device(codec: Codec, sealed_again: bool) -> None:
    """It may look at what arrived only after it has decoded that."""
    draws = np.random.default_rng(7)
    gradients = [gradient((20, 10), rank) for rank in range(RANKS)]
    ours, theirs = (Exchange(codec, backend, gradients) for backend in ("device", "numpy"))
    row = theirs.rows.buffers[SITE.name][0].tobytes()
    for _ in range(24):
        changed = np.frombuffer(row, np.uint8).copy()
        size = changed.size - SEAL_NBYTES if sealed_again else changed.size
        start = int(draws.integers(size))
        changed[start : start + int(draws.integers(1, 9))][: size - start] = draws.integers(256)
        changed[int(draws.integers(size))] ^= 1 << int(draws.integers(8))
        if sealed_again:
            changed = theirs.ops.seal_row([changed[:-SEAL_NBYTES]], theirs.pending.tag)
        assert ours.outcome(changed.tobytes()) == theirs.outcome(changed.tobytes())


def test_triton_is_not_imported_after_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process would end."""
    cuda = torch.device("cuda")
    monkeypatch.setattr("hvd_compress.ops._torch.find_spec", lambda name: name)
    for name in ("tensorflow", "triton"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert uses_triton(cuda)
    assert not uses_triton(torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "tensorflow", torch)
    assert not uses_triton(cuda)
    monkeypatch.setitem(sys.modules, "triton", torch)
    assert uses_triton(cuda)
    monkeypatch.setenv("HVD_COMPRESS_TRITON", "0")
    assert not uses_triton(cuda)


def test_flags_of_other_ranks_are_heeded() -> None:
    """One rank's gradient is all zeros, then one's is not finite."""
    codec = FIXED[4]
    for other in (0.0, np.inf):
        gradients = [gradient((40, 30), 0), np.full((40, 30), other, np.float32)]
        ours, theirs = (Exchange(codec, backend, gradients) for backend in ("device", "numpy"))
        np.testing.assert_array_equal(to_numpy(ours.received()), theirs.received())
