"""Top-k sparsification."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Feedback, Payload, State, TensorSpec
from hvd_compress.codecs._sparse import Sparsifier, kept_count, pack_entries, sparse_nbytes, unpack_entries
from hvd_compress.generator import Site
from hvd_compress.indices import INDEX_CODECS
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, real
from hvd_compress.registry import register

__all__ = ["TopK"]


@register("topk")
@dataclass(frozen=True)
class TopK(Sparsifier):
    """Keep the entries of largest magnitude; of equal ones the smaller index wins.

    References
    ----------
    A. F. Aji and K. Heafield, "Sparse communication for distributed gradient descent", 2017; with error feedback:
    S. U. Stich et al., "Sparsified SGD with memory", 2018.

    Parameters
    ----------
    density : float
        Fraction of entries sent, in (0, 1]; k = density * n, rounded half to even, at least 1.
    value_dtype : str
        "float32", "float16" (limited to +-65504) or "bfloat16": how values travel.
    index_codec : str
        How indices travel: "auto", "ef", "bitmap", "u16" or "u32".

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import Site, TensorSpec, TopK, ops_for
    >>> x = np.array([0.5, -2, 0, 1.5, -0.1, 3], np.float32)
    >>> codec, ops, site = TopK(density=1 / 3), ops_for(x), Site("w", step=0)
    >>> payload, _ = codec.encode(ops, x, {}, site)
    >>> codec.decode(ops, payload, TensorSpec((6,), "float32"), site).tolist()
    [0.0, -2.0, 0.0, 0.0, 0.0, 3.0]
    """

    density: float = real(0.01, 0.0, 1.0, "fraction of entries sent", low_open=True)
    value_dtype: str = choice("float32", ("float32", "float16", "bfloat16"), "how values travel")
    index_codec: str = choice("auto", INDEX_CODECS, "how indices travel")

    paper = "Aji and Heafield 2017; Stich et al. 2018"

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        # inf and NaN have the largest magnitude bits: they are always among the entries that are looked at.
        indices = ops.largest(x, kept_count(self.density, ops.shape(x)[0]))
        return pack_entries(ops, x, indices, self.value_dtype, self.index_codec), state

    def entries(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> tuple[Array, Array]:
        (k,) = self.counts(spec)
        return unpack_entries(ops, payload, spec, k, self.value_dtype, self.index_codec)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        (k,) = self.counts(spec)
        return sparse_nbytes(spec.numel, k, self.value_dtype, self.index_codec)
