"""What the sparsifiers share: k from the density, and the payload of values and indices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from hvd_compress.codec import Array, Codec, Reduction, State
from hvd_compress.generator import Site
from hvd_compress.indices import decode_indices, encode_indices, index_nbytes
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import Addends, Payload, TensorSpec
from hvd_compress.wire import flag_of

__all__ = [
    "VALUE_NBYTES",
    "LargestSparsifier",
    "Sparsifier",
    "kept_count",
    "pack_entries",
    "sparse_nbytes",
    "unpack_entries",
]

VALUE_NBYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def kept_count(density: float, n: int) -> int:
    """Entries kept of n: density * n rounded half to even, at least 1 and at most n (0 of 0).

    Examples
    --------
    >>> kept_count(0.29, 100), kept_count(0.0025, 1000), kept_count(0.001, 5), kept_count(0.5, 0)
    (29, 2, 1, 0)
    """
    return min(n, max(1, round(density * n)))


def sparse_nbytes(n: int, k: int, value_dtype: str, index_codec: str) -> tuple[int, int]:
    """Bytes of the values and of the indices."""
    return VALUE_NBYTES[value_dtype] * k, index_nbytes(n, k, index_codec)


def pack_entries(ops: Kernels, x: Array, indices: Array, value_dtype: str, index_codec: str) -> Payload:
    """Payload of the entries of float32 `x` at rising `indices`."""
    n, k = ops.shape(x)[0], ops.shape(indices)[0]
    values = ops.take(x, indices)
    parts = (ops.round_floats(values, value_dtype), encode_indices(ops, indices, n, k, index_codec))
    return Payload(parts, flag_of(ops, values), (k,), indices)


def unpack_entries(
    ops: Kernels, payload: Payload, spec: TensorSpec, k: int, value_dtype: str, index_codec: str
) -> tuple[Array, Array]:
    """Values (float32) and indices of a payload; ``ValueError`` if it is damaged."""
    packed_values, packed_indices = payload.parts
    values = ops.read_floats(packed_values, value_dtype)
    ops.require(ops.all_finite(values), "payload: a value is not finite")
    if payload.kept is not None:
        return values, payload.kept
    return values, decode_indices(ops, packed_indices, spec.numel, k, index_codec)


class Sparsifier(Codec):
    """A codec whose payload holds the values and the rising indices of k entries."""

    density: float

    knobs: ClassVar[tuple[str, ...]] = ("density",)

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    def kept(self, n: int) -> int:
        """Entries sent of n."""
        return kept_count(self.density, n)

    @abstractmethod
    def entries(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> tuple[Array, Array]:
        """Values (float32) and indices of a payload; ``ValueError`` if it is damaged."""

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.add_decoded(ops, ops.zeros(spec.numel), payload, spec, site)

    def add_decoded(self, ops: Kernels, total: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        values, indices = self.entries(ops, payload, spec)
        return ops.scatter_add(total, indices, values)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        rows = (self.entries(ops, payload, spec)[::-1] for payload in payloads)
        return ops.sum_entries(rows, factor, into)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        values, indices = self.entries(ops, payload, spec)
        return ops.scatter_add(x, indices, -values)

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return (self.kept(spec.numel),)


class LargestSparsifier(Sparsifier):
    """A sparsifier that sends the entries of largest magnitude."""

    @abstractmethod
    def pack(self, ops: Kernels, x: Array, indices: Array, site: Site) -> Payload:
        """Payload of the entries of float32 `x` at rising `indices`."""

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        # inf and NaN have the largest magnitude bits: they are among the entries that are looked at, if any is.
        x = ops.float32(x)
        return self.pack(ops, x, ops.largest(x, self.kept(ops.shape(x)[0])), site), state

    def encode_sum(
        self, ops: Kernels, addends: Addends, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State, Array]:
        x, residual, decay, room = addends
        total, indices = ops.accumulate_largest(x, residual, decay, self.kept(ops.shape(x)[0]), room)
        return self.pack(ops, total, indices, site), state, total
