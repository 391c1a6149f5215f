"""The codecs, arrays and backends that every law is tested on."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from hvd_compress import (
    DGC,
    EF21,
    QSGD,
    Cast,
    Codec,
    Dense,
    DenseMomentum,
    ErrorFeedback,
    JointSQ,
    RandomK,
    Site,
    TopK,
    TopKQSGD,
    native,
)
from hvd_compress import codecs as catalogue
from hvd_compress.chunks import Chunked
from hvd_compress.codec import Reduction, State
from hvd_compress.exchange import Pending
from hvd_compress.ops import Kernels, ops_for
from hvd_compress.ops._numpy import NumpyOps
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.policy import BySize
from hvd_compress.relay import Relay, alone
from hvd_compress.session import Session
from hvd_compress.stats import Stats
from hvd_compress.wire import pack
from hvd_compress.worker import Worker
from tests.devices import device

SITE = Site("fc.weight", step=7, rank=0, world_size=1)

CODECS: list[Codec] = [
    Dense(),
    Cast(dtype="float16"),
    Cast(dtype="float16", prescale=False),
    Cast(dtype="bfloat16"),
    TopK(density=0.1),
    TopK(density=1.0),
    TopK(density=0.1, value_dtype="float16"),
    TopK(density=0.1, value_dtype="bfloat16", index_codec="u32"),
    TopK(density=0.1, index_codec="u16"),
    TopK(density=0.1, index_codec="bitmap"),
    RandomK(density=0.1),
    RandomK(density=0.1, selection="uniform"),
    RandomK(density=0.1, selection="block"),
    RandomK(density=0.1, mode="unbiased"),
    RandomK(density=0.1, mode="unbiased", selection="uniform"),
    RandomK(density=0.1, value_dtype="float16"),
    QSGD(),
    QSGD(bits=2, bucket_size=0, rounding="nearest"),
    QSGD(bits=8, bucket_size=7, seed=1234),
    QSGD(levels=1, packing="radix"),
    QSGD(levels=4, packing="radix", bucket_size=50),
    QSGD(levels=255, bucket_size=50),
    QSGD(bits=4, packing="elias"),
    TopKQSGD(density=0.1),
    TopKQSGD(density=1.0, bits=8, rounding="nearest", bucket_size=10),
    TopKQSGD(density=0.1, grid="fitted", bucket_size=30),
    DGC(density=0.1),
    DGC(density=0.1, nesterov=True, masking=False, clip_norm=1.0, value_dtype="float16"),
    DGC(density=0.05, selection="sampled", momentum=0.0, warmup_steps=8),
    DenseMomentum(momentum=0.5),
    DenseMomentum(nesterov=True),
    ErrorFeedback(QSGD(bits=3)),
    ErrorFeedback(TopKQSGD(density=0.1, grid="fitted", bits=2)),
    JointSQ(),
    JointSQ(bits_per_entry=4.0),
    JointSQ(bits_per_entry=1.0, index_cost_bits=6.0, fit_iters=0),
    JointSQ(bits_per_entry=2.0, rounding="stochastic", seed=1234),
    JointSQ(bits_per_entry=2.0, accounting="values"),
    ErrorFeedback(JointSQ()),
    ErrorFeedback(JointSQ(bits_per_entry=2.0, accounting="values")),
    ErrorFeedback(TopK(density=0.1)),
    ErrorFeedback(TopK(density=0.1, value_dtype="float16"), decay=0.5),
    ErrorFeedback(RandomK(density=0.1)),
    ErrorFeedback(TopK(density=0.1), low_pass=0.25),
    ErrorFeedback(catalogue.ScaleCom(density=0.1), low_pass=0.25),
    ErrorFeedback(Cast(dtype="bfloat16")),
    EF21(TopK(density=0.1)),
    EF21(RandomK(density=0.1), eta=0.25),
    EF21(catalogue.PowerSGD(rank=1), eta=0.5),
    *(
        catalogue.ARCTopK(density=0.1, row_size=16, sketch_size=2),
        ErrorFeedback(catalogue.ARCTopK(density=0.3, row_size=9)),
    ),
    *(catalogue.PowerSGD(rank=2), catalogue.PowerSGD(rank=3, warm_start=False, seed=1234)),
    *(ErrorFeedback(catalogue.PowerSGD(rank=1)),),
    *(catalogue.AlternatingPowerSGD(rank=2), ErrorFeedback(catalogue.AlternatingPowerSGD(rank=1, seed=1234))),
    *(catalogue.ScaleCom(density=0.1), ErrorFeedback(catalogue.ScaleCom(density=0.3, index_codec="u16"))),
    Chunked(ErrorFeedback(TopK(density=0.1)), size=1000),
    Chunked(RandomK(density=0.1), size=1000),
    Chunked(DenseMomentum(), size=1000),
    *(catalogue.EFSignSGD(), ErrorFeedback(catalogue.EFSignSGD())),
    *(catalogue.SignSGD(), catalogue.SignSGD(momentum=0.9)),
    *(catalogue.DenseSign(), catalogue.DenseSign(momentum=0.5)),
    *(catalogue.TernGrad(), catalogue.TernGrad(clip_sigma=2.5, packing="bits", seed=1234)),
    *(catalogue.Natural(), ErrorFeedback(catalogue.Natural(seed=1234))),
    *(catalogue.Int8(), ErrorFeedback(catalogue.Int8(block_size=64, rounding="stochastic"))),
    *(ErrorFeedback(catalogue.OneBit()), catalogue.OneBit(bucket_size=50)),
    *(catalogue.Threshold(), ErrorFeedback(catalogue.Threshold(threshold=0.5, density=0.2))),
    *(ErrorFeedback(catalogue.Threshold(threshold=0.5, capped=False)),),
    *(catalogue.SIDCo(density=0.1), ErrorFeedback(catalogue.SIDCo(density=0.1, model="gpareto"))),
    *(catalogue.SIDCo(density=0.05, model="gamma", stages=2),),
    *(catalogue.AdaQ(density=0.1), ErrorFeedback(catalogue.AdaQ(density=0.1))),
]


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "zeros": np.zeros(31, np.float32),
    "negative zeros": np.full(31, -0.0, np.float32),
    "0-d": np.array(-2.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "one": np.array([3.0], np.float32),
    "two": np.array([-1.0, 2.0], np.float32),
    "ties": np.array([1, -1, 1, 1] * 16, np.float32),
    "huge": _random(100) * np.float32(1e37),
    "denormals": np.arange(-40, 40, dtype=np.float32) * np.float32(1e-44),
    "odd": _random(1023),
    "matrix": _random(32, 32),
    "large": _random(65537),
    "not contiguous": _random(40, 30).T[::2],
    "float16": _random(5, 101).astype(np.float16),
    "float64": _random(5, 101).astype(np.float64) * 1.1,
}


def required_backends() -> list[str]:
    """The backends that must be there; absent means fail, not skip.

    "numpy" and "torch" are the readable bodies, "native" is NumPy's arrays with the C++ kernels, "device"
    what torch does on a GPU, "triton" the same with Triton's kernels; without a GPU, on the CPU. There Triton is so
    slow that by default only `test_triton.py` has it.
    """
    default = "numpy,torch,tensorflow,device" + ("" if os.environ.get("HVD_COMPRESS_NATIVE") == "0" else ",native")
    return os.environ.get("HVD_COMPRESS_TEST_BACKENDS", default).split(",")


def to_backend(backend: str, x: np.ndarray[Any, Any]) -> Any:
    """The same array in a framework, with the same strides where it can."""
    if backend in ("numpy", "native"):
        return x
    assert backend in ("torch", "tensorflow", "device", "triton"), f"unknown backend {backend}"
    framework = "tensorflow" if backend == "tensorflow" else "torch"
    message = f"{framework} is required by HVD_COMPRESS_TEST_BACKENDS, but is not installed"
    assert importlib.util.find_spec(framework), message
    if framework == "torch":
        import torch

        tensor = torch.from_numpy(x.copy(order="K"))
        return tensor if backend == "torch" else tensor.to(device())
    import tensorflow as tf

    return tf.constant(x)


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """A NumPy copy of any framework's array."""
    if hasattr(x, "cpu"):
        x = x.cpu()
    return x.copy() if isinstance(x, np.ndarray) else np.asarray(x.numpy() if hasattr(x, "numpy") else x)


def ops_of(backend: str) -> Kernels:
    """The backend's operations."""
    if backend == "numpy":
        return NumpyOps()
    if backend == "torch":
        from hvd_compress.ops._torch import TorchOps

        return TorchOps(to_backend(backend, np.zeros(1)).device)
    if backend == "device":
        from hvd_compress.ops.device import DeviceOps

        return DeviceOps(to_backend(backend, np.zeros(1)).device)
    if backend == "triton":
        return triton_ops(16 if device() == "cpu" else 1)
    assert backend != "native" or native.kernels is not None, "the C++ kernels were not built"
    return ops_for(to_backend(backend, np.zeros(1, np.float32)))


def triton_ops(blocks: int = 1) -> Kernels:
    """The operations with Triton's kernels, in blocks so many times as large as they are: the interpreter is slow."""
    assert importlib.util.find_spec("triton"), "triton is required by HVD_COMPRESS_TEST_BACKENDS, but is not installed"
    from hvd_compress.ops.device_triton import TritonOps

    ops = TritonOps(to_backend("triton", np.zeros(1)).device)
    ops.block *= blocks
    return ops


def label(codec: Codec) -> str:
    """A short name of a codec: what differs from the defaults."""
    words = [codec.name]
    for declared in fields(codec):
        value = getattr(codec, declared.name)
        if value != declared.default:
            words.append(f"({label(value)})" if isinstance(value, Codec) else f"{declared.name}={value}")
    return " ".join(words)


def assert_unchanged(ops: Kernels, after: State, state: State) -> None:
    """A state is the one before; on a device, which the host does not wait for, one with the same bits."""
    if not ops.waits:
        assert after is state
    assert {key: to_numpy(value).tobytes() for key, value in after.items()} == {
        key: to_numpy(value).tobytes() for key, value in state.items()
    }


backends = pytest.mark.parametrize("backend", required_backends())
codecs = pytest.mark.parametrize("codec", CODECS, ids=label)
arrays = pytest.mark.parametrize("array", list(ARRAYS.values()), ids=list(ARRAYS))


def advance(sent: Iterable[Pending]) -> None:
    """Start the second phase of what was sent by all ranks of one process, where there is one."""
    for pending in sent:
        if isinstance(pending.handle, Relay):
            pending.handle.advance()


def concluded(
    codec: Codec, ops: Kernels, payload: Payload, state: State, spec: TensorSpec, site: Site
) -> tuple[Payload, State]:
    """Payload and state as on the only rank of a job when its exchange has ended."""
    if codec.reduction is not Reduction.TWO_PHASE:
        return payload, state
    payload = alone(codec, ops, payload, spec, site)
    return payload, codec.conclude(
        ops, payload._replace(kept=codec.decode(ops, payload, spec, site)), state, spec, site
    )


def wire_of(codec: Codec, ops: Kernels, payload: Payload) -> Any:
    """The bytes that cross the network, as uint8, without the seal."""
    if codec.reduction is Reduction.GATHER:
        return pack(ops, payload)
    return ops.concat([ops.to_bytes(part) for part in payload.parts])


class LoopbackCollective:
    """A collective whose ranks are the calls of one process: what rank after rank sent comes back joined, or added up.

    Parameters
    ----------
    damage : callable, optional
        Changes the joined buffer before it is received.
    """

    def __init__(self, damage: Callable[[Any], Any] | None = None) -> None:
        self.buffers: dict[str, list[Any]] = {}
        self.addends: dict[str, list[Any]] = {}
        self._damage = damage

    def allgather(self, buffer: Any, name: str) -> str:
        self.buffers.setdefault(name, []).append(buffer)
        return name

    def allreduce(self, array: Any, name: str) -> str:
        self.addends.setdefault(name, []).append(array)
        return name

    def wait(self, handle: str) -> Any:
        if handle in self.addends:
            # A new array, as from a network.
            return sum(self.addends[handle][1:], self.addends[handle][0] + 0)
        buffers = self.buffers[handle]
        joined = ops_for(buffers[0]).concat(buffers)
        return self._damage(joined) if self._damage else joined


class OneRankCollective(LoopbackCollective):
    """The collective of the only rank of a job."""

    rank, world_size, wait_seconds = 0, 1, 0.0

    def __init__(self) -> None:
        super().__init__()
        self.sent_bytes = 0

    def allgather(self, buffer: Any, name: str) -> str:
        self.sent_bytes += buffer.nbytes
        return super().allgather(buffer, name)

    def allreduce(self, array: Any, name: str) -> str:
        self.sent_bytes += array.nbytes
        return super().allreduce(array, name)


class OneRank:
    """What a skin does on the only rank of a job, with NumPy arrays.

    Parameters
    ----------
    policy : BySize
        Chooses the codecs.
    ops : Kernels, optional
        By default the fastest that there are.
    loss_scale : callable, optional
        Of the session.
    """

    def __init__(
        self, policy: BySize, ops: Kernels | None = None, loss_scale: Callable[[], float] | None = None
    ) -> None:
        self.worker, self.session = Worker(policy), Session(loss_scale)
        self._ops = ops or ops_for(np.zeros(1))

    def step(self, gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Send all gradients, then receive all of them, in their own place where they are float32."""
        sent = {}
        for name, gradient in gradients.items():
            collective = OneRankCollective()
            arguments = self.session, name, self._ops, gradient, collective, perf_counter()
            self.worker.begin(self.session, name)
            sent[name] = *self.worker.send(*arguments), collective
        results = {}
        for name, gradient in gradients.items():
            reduced, pending, collective = sent.pop(name)
            into = gradient if gradient.dtype == np.float32 else None
            results[name] = self.worker.receive(self.session, self._ops, reduced, pending, collective, into)
        return results

    @property
    def stats(self) -> Stats:
        """What a skin reports."""
        return self.worker.snapshot([self.session])
