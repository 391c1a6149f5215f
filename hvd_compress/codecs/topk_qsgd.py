"""Top-k followed by QSGD: the direct combination of sparsification and quantisation."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Feedback
from hvd_compress.codecs._fitted import fitted_nbytes, quantise_fitted, restore_fitted
from hvd_compress.codecs._sparse import LargestSparsifier
from hvd_compress.codecs.qsgd import QSGD
from hvd_compress.generator import Site
from hvd_compress.indices import INDEX_CODECS, decode_indices, encode_indices, index_nbytes
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, integer, real
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["TopKQSGD"]


@register("topk_qsgd")
@dataclass(frozen=True)
class TopKQSGD(LargestSparsifier):
    """Keep the entries of largest magnitude and round them with QSGD; error feedback makes up for both losses.

    References
    ----------
    D. Basu et al., "Qsparse-local-SGD: Distributed SGD with quantization, sparsification, and local computations",
    2019.

    Parameters
    ----------
    density : float
        Fraction of entries sent, in (0, 1].
    bits : int
        Bits of a code, sign included.
    bucket_size : int
        Kept entries that share a norm; 0 for all.
    grid : str
        "uniform": QSGD's multiples of norm / s. "fitted": 2**(bits-1) magnitudes fitted to each bucket, as JointSQ
        does, none of them near zero; always rounded to the nearest.
    rounding : str
        "stochastic" or "nearest", on the uniform grid.
    index_codec : str
        How indices travel, as for top-k.
    seed : int
        Of the rounding.

    Examples
    --------
    >>> from hvd_compress import TensorSpec, TopKQSGD
    >>> TopKQSGD(density=0.001, bits=4).payload_nbytes(TensorSpec((25_600_000,), "float32"))
    51258
    """

    density: float = real(0.01, 0.0, 1.0, "fraction of entries sent", low_open=True)
    bits: int = integer(4, 2, "bits of a code, sign included", high=8)
    bucket_size: int = integer(512, 0, "kept entries that share a norm; 0 for all")
    grid: str = choice("uniform", ("uniform", "fitted"), "levels from zero on, or fitted to the kept entries")
    rounding: str = choice("stochastic", ("stochastic", "nearest"), "how entries are rounded")
    index_codec: str = choice("auto", INDEX_CODECS, "how indices travel")
    seed: int = integer(0, 0, "seed of the rounding", high=2**64 - 1)

    paper = "Basu et al. 2019"
    knobs = ("density", "bits")

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    @property
    def _quantiser(self) -> QSGD:
        return QSGD(bits=self.bits, bucket_size=self.bucket_size, rounding=self.rounding, seed=self.seed)

    def pack(self, ops: Kernels, x: Array, indices: Array, site: Site) -> Payload:
        (n,), (k,) = ops.shape(x), ops.shape(indices)
        values = ops.take(x, indices)
        if self.grid == "fitted":
            (scales, codes), flag = quantise_fitted(ops, values, self.bits, self.bucket_size)
        else:
            (scales, codes), flag = self._quantiser.quantise(ops, values, indices, site)
        return Payload((scales, encode_indices(ops, indices, n, k, self.index_codec), codes), flag, (k,), indices)

    def entries(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> tuple[Array, Array]:
        scales, indices, codes = payload.parts
        (k,) = self.counts(spec)
        if self.grid == "fitted":
            values = restore_fitted(ops, (scales, codes), k, self.bits, self.bucket_size)
        else:
            values = self._quantiser.restore(ops, (scales, codes), k)
        if payload.kept is not None:
            return values, payload.kept
        return values, decode_indices(ops, indices, spec.numel, k, self.index_codec)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        (k,) = self.counts(spec)
        fitted = self.grid == "fitted"
        scales, codes = fitted_nbytes(k, self.bits, self.bucket_size) if fitted else self._quantiser.section_nbytes(k)
        return scales, index_nbytes(spec.numel, k, self.index_codec), codes
