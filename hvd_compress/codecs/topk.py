"""Top-k sparsification."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hvd_compress.budget import count_magnitudes
from hvd_compress.codec import Array, Feedback
from hvd_compress.codecs._sparse import LargestSparsifier, pack_entries, sparse_nbytes, unpack_entries
from hvd_compress.generator import Site
from hvd_compress.indices import INDEX_CODECS
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, integer, real
from hvd_compress.payload import EMPTY, NONFINITE, Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["TopK"]


@register("topk")
@dataclass(frozen=True)
class TopK(LargestSparsifier):
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
    scope : str
        "tensor": each sends its own fraction; "model": the largest entries of all tensors together.
    rebudget_steps : int
        Steps between counts of magnitudes, for scope "model".

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
    scope: str = choice("tensor", ("tensor", "model"), "whose entries are compared with each other")
    rebudget_steps: int = integer(100, 1, "steps between counts of magnitudes, for scope model")
    entries_kept: int | None = field(default=None, repr=False)

    paper = "Aji and Heafield 2017; Stich et al. 2018"

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    def pack(self, ops: Kernels, x: Array, indices: Array, site: Site) -> Payload:
        payload = pack_entries(ops, x, indices, self.value_dtype, self.index_codec)
        if self.entries_kept == 0:
            payload = payload._replace(flag=ops.where(ops.all_finite(x), EMPTY, NONFINITE))
        if self.shared_every and site.step % self.shared_every == 0:
            payload = payload._replace(magnitudes=count_magnitudes(ops, x))
        return payload

    def kept(self, n: int) -> int:
        return super().kept(n) if self.entries_kept is None else self.entries_kept

    @property
    def shared_every(self) -> int:
        return self.rebudget_steps if self.scope == "model" else 0

    def cost(self, spec: TensorSpec) -> int:
        return super().kept(spec.numel)

    def cost_at(self, spec: TensorSpec, above: Array, lowest: int) -> int:
        return int(above[lowest])

    def with_budget(self, budget: int) -> TopK:
        return replace(self, entries_kept=budget)

    def entries(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> tuple[Array, Array]:
        (k,) = self.counts(spec)
        return unpack_entries(ops, payload, spec, k, self.value_dtype, self.index_codec)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        (k,) = self.counts(spec)
        return sparse_nbytes(spec.numel, k, self.value_dtype, self.index_codec)
