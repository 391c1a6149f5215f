"""1-bit SGD: signs, and the mean of the entries of each sign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._scales import flag_of_scales
from hvd_compress.codecs._signs import class_means, pack_means, signs_nbytes, tables_of_means
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import integer
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["OneBit"]


@register("onebit")
@dataclass(frozen=True)
class OneBit(Codec):
    """Send the sign of each entry, and for each bucket the mean of its entries >= 0 and that of those below.

    Error feedback is part of it. A dense start of some hundred steps helps, as in the paper: ``Compression.by_step``.

    References
    ----------
    F. Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of
    speech DNNs", 2014.

    Parameters
    ----------
    bucket_size : int
        Entries, one after another, that share their means; 0 for all of a tensor. One large entry spoils the means of
        all that share them. The paper has one bucket for each column of its weights, that is for each output: with
        weights of shape (outputs, inputs) these are buckets of as many entries as there are inputs.

    Notes
    -----
    Zero belongs to the entries >= 0. Entries that are always zero go to and fro by about a mean times the learning
    rate; see EF-signSGD.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import Site, TensorSpec, ops_for
    >>> from hvd_compress.codecs import OneBit
    >>> x = np.array([1, -2, 3, -4, 2], np.float32)
    >>> codec, ops, site = OneBit(), ops_for(x), Site("w", step=0)
    >>> payload, _ = codec.encode(ops, x, {}, site)
    >>> codec.decode(ops, payload, TensorSpec((5,), "float32"), site).tolist()
    [2.0, -3.0, 2.0, -3.0, 2.0]
    """

    bucket_size: int = integer(0, 0, "entries that share their means; 0 for all")

    paper = "Seide et al. 2014"

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    @property
    def feedback(self) -> Feedback:
        return Feedback.REQUIRED

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        n = ops.shape(x)[0]
        means = class_means(ops, x, self._size(n))
        parts = pack_means(ops, means), ops.pack_negative(x)
        return Payload(parts, flag_of_scales(ops, means), (n,)), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        tables, n = tables_of_means(ops, payload.parts[0]), spec.numel
        return ops.restore_codes(payload.parts[1], 1, tables, self._size(n), n)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        rows = [(payload.parts[1], tables_of_means(ops, payload.parts[0])) for payload in payloads]
        return ops.sum_codes(rows, 1, self._size(spec.numel), factor, into)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        tables = tables_of_means(ops, payload.parts[0])
        return ops.subtract_codes(x, payload.parts[1], 1, tables, self._size(spec.numel))

    def _size(self, n: int) -> int:
        return min(self.bucket_size or n, n) or 1

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return 8 * -(-spec.numel // self._size(spec.numel)), signs_nbytes(spec.numel)
