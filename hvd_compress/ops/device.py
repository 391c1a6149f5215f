"""torch tensors on a device that works on while the host goes ahead: no operation here makes the host wait for it.

Only what needs a number on the host does: `branch`, `require`, `integer`, `to_list`, `nonzero` and what is built on
these. What is overridden gives the bits of the body that it replaces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from copy import copy
from typing import Any, Self, TypeVar

import torch

from hvd_compress.generator import MASK
from hvd_compress.ops._torch import TorchOps
from hvd_compress.ops.base import Array
from hvd_compress.ops.rows import SEAL_NBYTES

__all__ = ["DeviceOps"]

T = TypeVar("T")


class DeviceOps(TorchOps):
    """Operations on the tensors of a device, in the order of the stream that is current."""

    waits = True
    _checks: MutableSequence[Array] | None = None
    """What is required and was not looked at yet; None where that is done at once."""

    def constant(self, values: Sequence[float] | bytes, dtype: str) -> Array:
        if len(values) == 1:
            return torch.full((1,), values[0], dtype=getattr(torch, dtype), device=self.device)
        return self.upload(torch.tensor(list(values), dtype=getattr(torch, dtype)))

    def upload(self, x: torch.Tensor) -> Array:
        """A tensor of the host's memory on the device."""
        if self.device.type == "cpu":
            return x
        # From memory that may be swapped out, the copy would be waited for.
        return x.pin_memory().to(self.device, non_blocking=True)

    def put(self, x: Array, indices: Array, values: Array | float) -> Array:
        # An index would make a tensor of the number first.
        return super().put(x, indices, values) if self.owns(values) else x.index_fill_(0, indices, values)

    def count(self, x: Array, bins: int) -> Array:
        # bincount looks for the largest entry first. Integers may be added in any order.
        places = x.to(torch.int64)
        return self.zeros(bins, "int64").scatter_add_(0, places, torch.ones_like(places))

    def first_nonzero(self, mask: Array, k: int) -> Array:
        # The k-th one is where the running count reaches k.
        counts = mask.cumsum(0, dtype=torch.int32)
        return torch.searchsorted(counts, torch.arange(1, k + 1, dtype=torch.int32, device=self.device))

    def find_ones(self, packed: Array, k: int) -> Array:
        bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=self.device)) & 1
        message = f"payload: index bitmap does not hold {k} ones"
        return self.require(bits.sum() == k, message, self.first_nonzero(bits.reshape(-1), k))

    def require_rising(self, indices: Array, n: int) -> Array:
        indices = super().require_rising(indices, n)
        # Nothing was looked at yet, and what is at these indices must be there all the same.
        return indices if self._checks is None else indices.clamp(0, n - 1)

    def select_largest(self, keys: Array, k: int) -> Array:
        if k in (0, keys.shape[0]):
            return self.arange(k)
        threshold = keys.topk(k, sorted=False).values.amin()
        above, equal = keys > threshold, keys == threshold
        first = equal.cumsum(0, dtype=torch.int32) <= k - above.sum()
        return self.first_nonzero(above | (equal & first), k)

    def bits_to_bytes(self, bits: Array) -> Array:
        eights = _filled(bits.to(torch.uint8), 8)
        return (eights << torch.arange(8, dtype=torch.uint8, device=self.device)).sum(1, dtype=torch.uint8)

    def pack_bits(self, codes: Array, bits: int) -> Array:
        if not 0 < bits <= 7:
            return super().pack_bits(codes, bits)
        # Eight codes are so many bytes, and fit an integer.
        eights = _filled(codes & ((1 << bits) - 1), 8) << (self.arange(8) * bits)
        parts = eights.sum(1).view(torch.uint8).reshape(-1, 8)[:, :bits]
        return parts.reshape(-1)[: -(-codes.shape[0] * bits // 8)]

    def unpack_bits(self, packed: Array, bits: int, count: int) -> Array:
        if not 0 < bits <= 7:
            return super().unpack_bits(packed, bits, count)
        parts = _filled(packed[: -(-count * bits // 8)], bits)
        words = torch.nn.functional.pad(parts, (0, 8 - bits)).reshape(-1).view(torch.int64)
        codes = (words[:, None] >> (self.arange(8) * bits)) & ((1 << bits) - 1)
        return codes.reshape(-1)[:count]

    def check_word(self, words: Array) -> Array:
        return (words * self._odd(words.shape[0])).sum(dtype=torch.int64) & MASK

    def rows_fit(self, rows: Array, count: int, nbytes: int, head: bytes, tag: int) -> bool:
        if rows.shape[0] != count * nbytes or nbytes < len(head) + SEAL_NBYTES or nbytes % 4:
            return False
        begins = rows.reshape(count, nbytes)[:, : len(head)] == self.constant(head, "uint8")
        words = self.from_bytes(rows, "int32").reshape(count, -1)
        checks = (words[:, :-2] * self._odd(words.shape[1] - 2)).sum(1, dtype=torch.int64) & MASK
        seals = words[:, -2:].to(torch.int64) & MASK
        fits = begins.all() & (seals[:, 0] == checks).all() & (seals[:, 1] == tag).all()
        if self._checks is None:
            return bool(fits)
        self._checks.append(fits)
        return True

    def cond(self, predicate: Array, then: Callable[[], T], otherwise: Callable[[], T]) -> T:
        if isinstance(predicate, bool):
            return then() if predicate else otherwise()
        return _select(predicate, then(), otherwise())  # type: ignore[no-any-return]

    def branch(self, predicate: Array, then: Callable[[], T], otherwise: Callable[[], T]) -> T:
        return then() if predicate else otherwise()

    def require(self, predicate: Array, message: Any, guarded: Array = None) -> Array:
        if self._checks is None or isinstance(predicate, bool):
            return super().require(predicate, message, guarded)
        self._checks.append(predicate)
        return guarded

    def trusting(self) -> Self:
        return self._noting(deque(maxlen=0))

    def attempt(self, function: Callable[[Self], T | None]) -> T | None:
        checks: list[Array] = []
        try:
            result = function(self._noting(checks))
        except ValueError:
            return None
        # The only place where a step waits for the device, when all of a tensor's work has been handed to it.
        return result if not checks or bool(torch.stack(checks).all()) else None

    def _noting(self, checks: MutableSequence[Array]) -> Self:
        other = copy(self)
        other._checks = checks
        return other

    def _odd(self, count: int) -> Array:
        """1, 3, 5, ... Products and sums of 32 bits wrap, as the check word has them."""
        return torch.arange(count, dtype=torch.int32, device=self.device) * 2 + 1


def _filled(x: Array, columns: int) -> Array:
    """Rows of so many entries; the last one is filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[0] % columns)).reshape(-1, columns)


def _select(predicate: Array, x: Any, y: Any) -> Any:
    """`x` where a 0-d boolean tensor holds, else `y`: tensors, or mappings and sequences of such."""
    if x is y:
        return x
    if isinstance(x, Mapping):
        return {key: _select(predicate, value, y[key]) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(_select(predicate, *pair) for pair in zip(x, y, strict=True))
    return torch.where(predicate, x, y)
