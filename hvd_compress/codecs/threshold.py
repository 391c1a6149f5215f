"""Sparsification by a fixed threshold."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, State
from hvd_compress.codecs._sparse import LargestSparsifier
from hvd_compress.generator import MASK, Site
from hvd_compress.indices import decode_indices, encode_indices, index_nbytes
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import flag, real
from hvd_compress.payload import Addends, Payload, TensorSpec
from hvd_compress.registry import register
from hvd_compress.wire import flag_of

__all__ = ["Threshold"]

_COUNT = 4
_ENTRIES = (("int64", (None,)), ("float32", (None,)))
_WRITTEN = (("uint8", (None,)), ("int64", ()), *_ENTRIES)


@register("threshold")
@dataclass(frozen=True)
class Threshold(LargestSparsifier):
    """Keep the entries whose magnitude reaches a threshold, at most a fraction of all: of more the largest.

    With a cap every payload has room for ``density * n`` entries: it is as large as top-k's, whatever passes, and what
    it does not need is zeros. Without, only what passes is sent, and each new size costs Horovod a negotiation.

    References
    ----------
    N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing", 2015.

    Parameters
    ----------
    threshold : float
        Smallest magnitude that is sent, > 0, as float32. It must suit the gradients, under a loss scaler the scaled
        ones: with error feedback an entry waits until its sum has grown so large.
    density : float
        Largest fraction of entries sent, in (0, 1].
    capped : bool
        Whether `density` limits what is sent.

    Notes
    -----
    Entries that are sent arrive as they are; the paper sends plus or minus the threshold and keeps the rest. The
    threshold is that of the sum of gradient and residual, as in the paper.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import Site, TensorSpec, ops_for
    >>> from hvd_compress.codecs import Threshold
    >>> x = np.array([0.5, -2, 0, 1.5, -0.1, 3], np.float32)
    >>> codec, ops, site = Threshold(threshold=1, density=0.5), ops_for(x), Site("w", step=0)
    >>> payload, _ = codec.encode(ops, x, {}, site)
    >>> codec.decode(ops, payload, TensorSpec((6,), "float32"), site).tolist()
    [0.0, -2.0, 0.0, 1.5, 0.0, 3.0]
    """

    threshold: float = real(0.01, 0.0, 1e38, "smallest magnitude that is sent", low_open=True)
    density: float = real(0.01, 0.0, 1.0, "largest fraction of entries sent", low_open=True)
    capped: bool = flag(True, "send no more than that fraction, so that sizes are fixed")

    paper = "Strom 2015"

    @property
    def fixed_size(self) -> bool:
        return self.capped

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    @property
    def _least(self) -> int:
        """Magnitude bits of the threshold; those of zero are none."""
        return max(1, int(struct.unpack("<I", struct.pack("<f", self.threshold))[0]))

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        if self.capped:
            return super().encode(ops, x, state, site, out)
        body, flag, *kept = ops.run_eagerly(self._write, (ops.float32(x),), _WRITTEN)
        return Payload((body,), flag, (), tuple(kept)), state

    def encode_sum(
        self, ops: Kernels, addends: Addends, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State, Array]:
        if self.capped:
            return super().encode_sum(ops, addends, state, site, out)
        return Codec.encode_sum(self, ops, addends, state, site, out)

    def pack(self, ops: Kernels, x: Array, indices: Array, site: Site) -> Payload:
        (n,), (k,) = ops.shape(x), ops.shape(indices)
        values = ops.take(x, indices)
        passes = ops.magnitude_bits(values) >= self._least
        values = ops.where(passes, values, 0.0)
        parts = ops.to_bytes(values), encode_indices(ops, indices, n, k)
        sent = ops.sum(ops.cast(passes, "int64"))
        return Payload(parts, flag_of(ops, values), (k,), indices, entries=sent)

    def _write(self, ops: Kernels, x: Array) -> tuple[Array, ...]:
        """Payload without the common header, flag, indices and values."""
        indices = ops.at_least(x, self._least)
        values, k = ops.take(x, indices), ops.shape(indices)[0]
        count = ops.to_bytes(ops.constant((k,), "int32"))
        body = ops.concat([count, ops.to_bytes(values), encode_indices(ops, indices, ops.shape(x)[0], k)])
        return body, flag_of(ops, values), indices, values

    def _read(self, ops: Kernels, body: Array, n: int) -> tuple[Array, Array]:
        """Indices and values of a payload without a cap."""
        length = ops.shape(body)[0]
        ops.require(length >= _COUNT, f"payload: {length} bytes after the header, expected at least {_COUNT}")
        k = ops.integer(ops.bit_and(ops.cast(ops.from_bytes(body[:_COUNT], "int32"), "int64"), MASK))
        ops.require(k <= n, f"payload: {k} entries of {n}")
        split = _COUNT + 4 * k
        expected = split + index_nbytes(n, k)
        ops.require(length == expected, f"payload: {length} bytes for {k} entries, expected {expected}")
        return decode_indices(ops, body[split:], n, k), ops.from_bytes(body[_COUNT:split], "float32")

    def entries(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> tuple[Array, Array]:
        if self.capped:
            values, (k,) = ops.from_bytes(payload.parts[0], "float32"), self.counts(spec)
            indices = payload.kept
            if indices is None:
                indices = decode_indices(ops, payload.parts[1], spec.numel, k)
        elif payload.kept is None:
            indices, values = ops.run_eagerly(lambda ops, x: self._read(ops, x, spec.numel), payload.parts, _ENTRIES)
        else:
            indices, values = payload.kept
        ops.require(ops.all_finite(values), "payload: a value is not finite")
        return values, indices

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return super().counts(spec) if self.capped else ()

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        n = spec.numel
        if self.capped:
            k = self.kept(n)
            return 4 * k, index_nbytes(n, k)
        return (_COUNT + 4 * n + index_nbytes(n, n),)
