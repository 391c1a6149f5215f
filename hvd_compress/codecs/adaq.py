"""AdaQ: the largest entries, as the mean of those of their sign."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Feedback
from hvd_compress.codecs._scales import flag_of_scales
from hvd_compress.codecs._signs import class_means, pack_means, signs_nbytes, tables_of_means
from hvd_compress.codecs._sparse import LargestSparsifier
from hvd_compress.generator import Site
from hvd_compress.indices import decode_indices, encode_indices, index_nbytes
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import real
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["AdaQ"]


@register("adaq")
@dataclass(frozen=True)
class AdaQ(LargestSparsifier):
    """Keep the entries of largest magnitude; send their positions and signs, and one mean for each sign.

    References
    ----------
    N. Dryden et al., "Communication quantization for data-parallel training of deep neural networks", 2016 (adaptive
    quantization).

    Parameters
    ----------
    density : float
        Fraction of entries sent, in (0, 1].

    Notes
    -----
    The paper keeps a fraction of the entries of each sign, here it is one of all, so that the size is fixed. It takes
    the threshold from a sample and sends what reaches it.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import Site, TensorSpec, ops_for
    >>> from hvd_compress.codecs import AdaQ
    >>> x = np.array([0.5, -2, 0, 1.5, -0.1, 3], np.float32)
    >>> codec, ops, site = AdaQ(density=0.5), ops_for(x), Site("w", step=0)
    >>> payload, _ = codec.encode(ops, x, {}, site)
    >>> codec.decode(ops, payload, TensorSpec((6,), "float32"), site).tolist()
    [0.0, -2.0, 0.0, 2.25, 0.0, 2.25]
    """

    density: float = real(0.01, 0.0, 1.0, "fraction of entries sent", low_open=True)

    paper = "Dryden et al. 2016"

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    def pack(self, ops: Kernels, x: Array, indices: Array, site: Site) -> Payload:
        (n,), (k,) = ops.shape(x), ops.shape(indices)
        values = ops.take(x, indices)
        means = class_means(ops, values, max(1, k))
        parts = pack_means(ops, means), encode_indices(ops, indices, n, k), ops.pack_negative(values)
        return Payload(parts, flag_of_scales(ops, means), (k,), indices)

    def entries(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> tuple[Array, Array]:
        means, indices, signs = payload.parts
        (k,) = self.counts(spec)
        values = ops.restore_codes(signs, 1, tables_of_means(ops, means), max(1, k), k)
        return values, decode_indices(ops, indices, spec.numel, k) if payload.kept is None else payload.kept

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        (k,) = self.counts(spec)
        return 8 * min(1, k), index_nbytes(spec.numel, k), signs_nbytes(k)
