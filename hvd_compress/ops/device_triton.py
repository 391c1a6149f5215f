"""torch tensors on a GPU, with kernels in Triton for what would take many operations; each gives the bits of its body.

What the kernels do not take, other dtypes, strides and sizes, is left to the bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hvd_compress.generator import Key
from hvd_compress.ops import triton_entries, triton_levels, triton_selection
from hvd_compress.ops.base import Array
from hvd_compress.ops.device import DeviceOps

__all__ = ["TritonOps"]

_MOST = 1 << 30
"""Entries: places of more do not fit the kernels' integers."""
_MOST_PROGRAMS = 1024
_LARGEST_BUCKET = 1 << 13


class TritonOps(DeviceOps):
    """Operations on the tensors of one GPU.

    Attributes
    ----------
    block : int
        Entries that a program works on at a time; a power of two.
    """

    block = 1024

    def largest(self, x: Array, k: int) -> Array:
        if not _usual(x) or k in (0, x.shape[0]):
            return super().largest(x, k)
        return self._select(x, None, x, 1.0, k)

    def accumulate_largest(
        self, x: Array, residual: Array, decay: float, k: int, out: Array | None = None
    ) -> tuple[Array, Array]:
        if not _usual(x, residual) or k in (0, x.shape[0]):
            return super().accumulate_largest(x, residual, decay, k, out)
        total = torch.empty_like(x) if out is None or out is residual else out
        return total, self._select(x, residual, total, decay, k)

    def _select(self, x: Array, residual: Array | None, total: Array, decay: float, k: int) -> Array:
        """Indices of the `k` largest magnitudes of `x`, or of `total`, which becomes ``x + decay * residual``."""
        kernels, n, shifts = triton_selection, x.shape[0], triton_selection.SHIFTS
        found = torch.zeros(17 * len(shifts), dtype=torch.int32, device=self.device)
        for number, (before, shift) in enumerate(zip((0, *shifts), shifts, strict=False)):
            add = number == 0 and residual is not None
            arrays = (x, residual, total) if add else (total, total, total)
            flags = {"FIRST": number == 0, "ADD": add, "BLOCK": self.block, "num_warps": 8}
            programs = min(_MOST_PROGRAMS, self._blocks(n))
            self._run(kernels.count_reaching, programs, *arrays, found, n, k, number, shift, before, decay, **flags)
        by_block = torch.empty((2, self._blocks(n)), dtype=torch.int32, device=self.device)
        self._run(kernels.count_chosen, self._blocks(n), total, found, by_block, n, k, BLOCK=self.block)
        ends, indices = by_block.cumsum(1, dtype=torch.int32), torch.empty(k, dtype=torch.int64, device=self.device)
        self._run(kernels.write_chosen, self._blocks(n), total, found, by_block, ends, indices, n, k, BLOCK=self.block)
        return indices

    def scatter_add(self, x: Array, indices: Array, values: Array) -> Array:
        if not _usual(x, values, same=False) or not indices.is_contiguous():
            return super().scatter_add(x, indices, values)
        k = indices.shape[0]
        self._run(triton_entries.add_entries, self._blocks(k), x, indices, values, k, BLOCK=self.block)
        return x

    def pack_rising(self, indices: Array, low: int, length: int) -> Array:
        k, split = indices.shape[0], -(-indices.shape[0] * low // 8)
        if k == 0 or not _fits(indices, low, length):
            return super().pack_rising(indices, low, length)
        nbytes = split + -(-length // 8)
        # One more than is needed: the bits of a number may reach into the word behind.
        words = torch.zeros(nbytes // 4 + 2, dtype=torch.int32, device=self.device)
        arguments = indices, words, k, low, 8 * split
        self._run(triton_entries.pack_rising, self._blocks(k), *arguments, BLOCK=self.block)
        return words.view(torch.uint8)[:nbytes]

    def unpack_rising(self, packed: Array, n: int, k: int, low: int) -> Array:
        split, nbytes = -(-k * low // 8), packed.shape[0]
        if k == 0 or nbytes <= split or not _fits(packed, low, 8 * nbytes):
            return super().unpack_rising(packed, n, k, low)
        blocks = self._blocks(8 * (nbytes - split))
        counts = torch.empty(blocks, dtype=torch.int32, device=self.device)
        self._run(triton_entries.count_ones, blocks, packed[split:], counts, nbytes - split, BLOCK=self.block)
        ends, indices = counts.cumsum(0, dtype=torch.int32), self.zeros(k, "int64")
        arguments = packed, counts, ends, indices, nbytes, split, k, low
        self._run(triton_entries.unpack_rising, blocks, *arguments, BLOCK=self.block)
        message = f"payload: index bitmap does not hold {k} ones"
        return self.require_rising(self.require(ends[-1] == k, message, indices), n)

    def bucket_maxima(self, x: Array, size: int) -> Array:
        if not _usual(x) or size > _LARGEST_BUCKET:
            return super().bucket_maxima(x, size)
        n, maxima = x.shape[0], torch.empty(-(-x.shape[0] // size), dtype=torch.float32, device=self.device)
        columns, buckets = 1 << (size - 1).bit_length(), maxima.shape[0]
        rows = max(1, self.block // columns)
        arguments = x, maxima, n, size, buckets
        self._run(triton_levels.bucket_maxima, -(-buckets // rows), *arguments, ROWS=rows, COLUMNS=columns)
        return maxima

    def pack_rounded(self, x: Array, scales: Array, size: int, s: int, key: Key | None) -> Array:
        n, bits = x.shape[0], s.bit_length() + 1
        if not _usual(x) or bits > 8:
            return super().pack_rounded(x, scales, size, s, key)
        live = scales > 0
        factors = torch.where(live, self.constant((s,), "float32") / torch.where(live, scales, 1.0), -1.0)
        packed = torch.empty(-(-n * bits // 8), dtype=torch.uint8, device=self.device)
        groups = max(1, self.block // 8)
        # As signed integers, whose type does not depend on the key.
        words = [word - (1 << 32) if word >> 31 else word for word in key or (0, 0)]
        flags = {"S": s, "BITS": bits, "RANDOM": key is not None, "GROUPS": groups}
        arguments = x, factors, packed, n, size, packed.shape[0], *words
        self._run(triton_levels.pack_rounded, -(-n // (8 * groups)), *arguments, **flags)
        return packed

    def subtract_levels(self, x: Array, packed: Array, units: Array, size: int, s: int) -> Array:
        if not self._takes(x, s):
            return super().subtract_levels(x, packed, units, size, s)
        return self._add_levels(x, packed, units, size, s, SUBTRACT=True)

    def sum_levels(self, rows: Sequence[tuple[Array, Array]], size: int, s: int, factor: Array, total: Array) -> Array:
        if not self._takes(total, s):
            return super().sum_levels(rows, size, s, factor, total)
        for number, (packed, units) in enumerate(rows):
            flags = {"FIRST": number == 0, "SCALE": number == len(rows) - 1}
            self._add_levels(total, packed, units, size, s, factor, **flags)
        return total

    def _takes(self, x: Array, s: int) -> bool:
        # Where a code may be above s, the body says so.
        return _usual(x) and s < 128 and s & (s + 1) == 0

    def _add_levels(
        self, total: Array, packed: Array, units: Array, size: int, s: int, factor: Array | None = None, **flags: bool
    ) -> Array:
        chosen = {"FIRST": False, "SUBTRACT": False, "SCALE": False, **flags}
        arguments = total, packed, units, units if factor is None else factor, total.shape[0], size, packed.shape[0]
        bits = s.bit_length() + 1
        self._run(
            triton_levels.add_levels, self._blocks(total.shape[0]), *arguments, BITS=bits, BLOCK=self.block, **chosen
        )
        return total

    def _blocks(self, n: int) -> int:
        return int(-(-n // self.block))

    def _run(self, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        """Start a kernel. Products and sums must not be fused: results have the bits of NumPy's."""
        if programs:
            with self._here():
                kernel[(programs,)](*arguments, **constants, enable_fp_fusion=False)

    def _here(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.device.type == "cpu" else torch.cuda.device(self.device)


def _usual(*arrays: Array, same: bool = True) -> bool:
    """Whether these are contiguous, of float32 and, unless not `same`, of one shape, neither tiny nor huge."""
    shape = arrays[0].shape
    return 1 < shape[0] < _MOST and all(
        x.dtype == torch.float32 and x.is_contiguous() and (not same or x.shape == shape) for x in arrays
    )


def _fits(x: Array, low: int, length: int) -> bool:
    return bool(x.is_contiguous()) and low < 32 and length < _MOST
