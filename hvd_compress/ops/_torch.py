"""torch tensors of one device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import torch

from hvd_compress import native
from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels
from hvd_compress.ops.native import NativeKernels

__all__ = ["TorchOps", "torch_ops", "uses_triton"]

T = TypeVar("T")
_DTYPES = {dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class TorchOps(Kernels):
    """Operations on the tensors of one device; results stay on it."""

    framework = "torch"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def owns(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor) and x.device == self.device

    def dtype(self, x: Array) -> str:
        # A string of it takes ten times as long.
        return _DTYPES[x.dtype]

    def shape(self, x: Array) -> tuple[int, ...]:
        return tuple(x.shape)

    def integer(self, x: Array) -> int:
        return int(x)

    def to_list(self, x: Array) -> list[Any]:
        return x.tolist()  # type: ignore[no-any-return]

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        return x.reshape(shape)

    def constant(self, values: Sequence[float] | bytes, dtype: str) -> Array:
        return torch.tensor(list(values), dtype=getattr(torch, dtype), device=self.device)

    def zeros(self, numel: int, dtype: str = "float32") -> Array:
        return torch.zeros(numel, dtype=getattr(torch, dtype), device=self.device)

    def arange(self, numel: int) -> Array:
        return torch.arange(numel, device=self.device)

    def cast(self, x: Array, dtype: str) -> Array:
        return x.to(getattr(torch, dtype))

    def to_bytes(self, x: Array) -> Array:
        # Of an array of NumPy's without entries the strides are zero, and torch has no view of that.
        return x.contiguous().view(torch.uint8) if x.numel() else self.zeros(0, "uint8")

    def from_bytes(self, x: Array, dtype: str) -> Array:
        target: torch.dtype = getattr(torch, dtype)
        if x.storage_offset() % target.itemsize:
            x = x.clone()
        return x.view(target)

    def concat(self, parts: Sequence[Array]) -> Array:
        return torch.cat(list(parts))

    def take(self, x: Array, indices: Array) -> Array:
        return x[indices]

    def put(self, x: Array, indices: Array, values: Array | float) -> Array:
        x[indices] = values
        return x

    def scatter_add(self, x: Array, indices: Array, values: Array) -> Array:
        # The indices are distinct, so this is deterministic; index_add_ need not be.
        x[indices] += values
        return x

    def nonzero(self, mask: Array) -> Array:
        return torch.nonzero(mask).reshape(-1)

    def count(self, x: Array, bins: int) -> Array:
        return torch.bincount(x, minlength=bins)

    def argsort(self, x: Array) -> Array:
        return torch.argsort(x, stable=True)

    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        return torch.where(condition, x, y)

    def equal(self, x: Array, y: Array | float) -> Array:
        return x == y

    def all(self, mask: Array) -> Array:
        return mask.all()

    def is_finite(self, x: Array) -> Array:
        return torch.isfinite(x)

    def sum(self, x: Array, axis: int = -1) -> Array:
        return x.sum(axis)

    def cumsum(self, x: Array) -> Array:
        return x.cumsum(0)

    def max(self, x: Array, axis: int = -1) -> Array:
        return x.amax(axis) if x.numel() else x.sum(axis, dtype=x.dtype)

    def floor(self, x: Array) -> Array:
        return x.floor()

    def rint(self, x: Array) -> Array:
        return x.round()

    def sqrt(self, x: Array) -> Array:
        return x.sqrt()

    def log(self, x: Array) -> Array:
        return x.log()

    def cos(self, x: Array) -> Array:
        return x.cos()

    def transpose(self, x: Array) -> Array:
        return x.T

    def matmul(self, x: Array, y: Array) -> Array:
        return x @ y

    def shift_right(self, x: Array, bits: Array | int) -> Array:
        return x >> bits

    def shift_left(self, x: Array, bits: Array | int) -> Array:
        return x << bits

    def bit_and(self, x: Array, y: Array | int) -> Array:
        return x & y

    def bit_xor(self, x: Array, y: Array | int) -> Array:
        return x ^ y

    def clip(self, x: Array, low: Array | float, high: Array | float) -> Array:
        return x.clamp(low, high)

    def scale_add(self, x: Array, y: Array, decay: float, out: Array | None = None) -> Array:
        return torch.add(x, y if decay == 1.0 else y * decay, out=out)

    def subtract(self, x: Array, y: Array, out: Array | None = None) -> Array:
        return torch.sub(x, y, out=out)

    def scale(self, x: Array, factor: Array | float, out: Array | None = None) -> Array:
        return torch.mul(x, factor, out=out)

    def divide(self, x: Array, divisor: int) -> Array:
        # For a number, and for an array on the CPU, a GPU would take the reciprocal.
        return x / self.constant((divisor,), "float32")

    def fill_zero(self, x: Array) -> Array:
        return x.zero_()

    def assign(self, x: Array, values: Array) -> Array:
        return x.copy_(torch.as_tensor(values))

    def magnitude_bits(self, x: Array) -> Array:
        return x.contiguous().view(torch.int32) & 0x7FFFFFFF

    def select_largest(self, keys: Array, k: int) -> Array:
        n = keys.shape[0]
        if k == 0 or k == n:
            return self.arange(k)
        threshold = keys.topk(k, sorted=False).values.min()
        candidates = self.nonzero(keys >= threshold)
        if candidates.shape[0] == k:
            return candidates
        above = self.nonzero(keys > threshold)
        equal = self.nonzero(keys == threshold)[: k - above.shape[0]]
        return torch.cat([above, equal]).sort().values

    def cond(self, predicate: Array, then: Callable[[], T], otherwise: Callable[[], T]) -> T:
        return then() if predicate else otherwise()

    def require(self, predicate: Array, message: Any, guarded: Array = None) -> Array:
        if not predicate:
            raise ValueError(message)
        return guarded


class _NativeTorchOps(NativeKernels, TorchOps):
    def zeros(self, numel: int, dtype: str = "float32") -> Array:
        # NumPy asks for huge pages, torch does not: getting at single entries of a large array takes twice as long.
        return self.from_numpy(np.zeros(numel, dtype)) if dtype != "bfloat16" else super().zeros(numel, dtype)

    def as_numpy(self, x: Array) -> Any:
        return x.detach().numpy()

    def from_numpy(self, x: Any) -> Array:
        tensor = torch.from_numpy(x)
        # NumPy's empty arrays have strides that torch does not take for contiguous.
        return tensor if x.size else torch.empty_like(tensor, memory_format=torch.contiguous_format)


def torch_ops(device: torch.device) -> TorchOps:
    """The operations of tensors on a device."""
    if device.type != "cpu":
        return _device_ops(device)
    return TorchOps(device) if native.kernels is None else _NativeTorchOps(device)


def _device_ops(device: torch.device) -> TorchOps:
    from hvd_compress.ops.device import DeviceOps

    if not uses_triton(device):
        return DeviceOps(device)
    from hvd_compress.ops.device_triton import TritonOps

    return TritonOps(device)


def uses_triton(device: torch.device) -> bool:
    """Whether Triton's kernels do what they can on a device."""
    # After TensorFlow, importing it ends the process.
    too_late = "tensorflow" in sys.modules and "triton" not in sys.modules
    wanted = device.type == "cuda" and os.environ.get("HVD_COMPRESS_TRITON") != "0" and not too_late
    # PyTorch's builds for NVIDIA bring it along.
    return wanted and find_spec("triton") is not None
