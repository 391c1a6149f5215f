"""SIDCo: top-k whose threshold is estimated from a distribution."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Feedback, State
from hvd_compress.codecs._sparse import Sparsifier, pack_entries, sparse_nbytes, unpack_entries
from hvd_compress.codecs._statistical import MODELS, estimated_threshold, magnitude_bits_of, usual_stages
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, integer, real
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["SIDCo"]

_LOWERED, _TIMES = 0.8, 20


@register("sidco")
@dataclass(frozen=True)
class SIDCo(Sparsifier):
    """Keep the entries of largest magnitude, which a threshold from a fitted distribution has singled out before.

    The estimate saves sorting and is often wrong, so it only narrows the search here: it is lowered until at least k
    entries pass, and of these the k largest are sent. So what is sent is what top-k sends, bit for bit, and sizes are
    fixed. On a GPU, where a look at the count would have to be waited for, all entries are searched. Top-k's own search
    begins with a threshold from a sample, which takes less time than to fit a distribution.

    References
    ----------
    A. M. Abdelmoniem et al., "An efficient statistical-based gradient compression technique for distributed training
    systems", 2021 (SIDCo).

    Parameters
    ----------
    density : float
        Fraction of entries sent, in (0, 1].
    model : str
        Distribution of the magnitudes: "exponential", "gpareto" (generalised Pareto) or "gamma".
    stages : int, optional
        Thresholds that are estimated one after another, each of what passes the one before; by default as many as it
        takes if each lets a quarter pass.

    Notes
    -----
    The authors change the number of stages every few steps by how many entries passed, and send those, so that sizes
    vary. In one stage their threshold lets none of a million normal entries pass where 1,000 should.

    Examples
    --------
    >>> from hvd_compress import TensorSpec, TopK
    >>> from hvd_compress.codecs import SIDCo
    >>> spec = TensorSpec((1000, 1000), "float32")
    >>> SIDCo(density=0.01).payload_nbytes(spec) == TopK(density=0.01).payload_nbytes(spec)
    True
    """

    density: float = real(0.01, 0.0, 1.0, "fraction of entries sent", low_open=True)
    model: str = choice("exponential", MODELS, "distribution of the magnitudes")
    stages: int | None = integer(None, 1, "thresholds that are estimated one after another", high=10)

    paper = "Abdelmoniem et al. 2021"

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        (n,) = ops.shape(x)
        k = self.kept(n)
        if ops.waits or k in (0, n):
            indices = ops.largest(x, k)
        else:
            (indices,) = ops.run_eagerly(lambda ops, x: (self._select(ops, x, k),), (x,), (("int64", (k,)),))
        return pack_entries(ops, x, indices, "float32", "auto"), state

    def _select(self, ops: Kernels, x: Array, k: int) -> Array:
        candidates = ops.at_least(x, self._least(ops, x, k))
        return ops.take(candidates, ops.largest(ops.take(x, candidates), k))

    def _least(self, ops: Kernels, x: Array, k: int) -> int:
        """Magnitude bits that at least `k` entries reach."""
        if not ops.all_finite(x):
            return 0
        stages = self.stages or usual_stages(self.density)
        threshold = estimated_threshold(ops, x, self.density, self.model, stages)
        for _ in range(_TIMES):
            least = magnitude_bits_of(threshold)
            if ops.count_at_least(x, least) >= k:
                return least
            threshold *= _LOWERED
        return 0

    def entries(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> tuple[Array, Array]:
        (k,) = self.counts(spec)
        return unpack_entries(ops, payload, spec, k, "float32", "auto")

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        (k,) = self.counts(spec)
        return sparse_nbytes(spec.numel, k, "float32", "auto")
