"""Top-k sparsification with the choice of one rank after the other."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._sparse import kept_count
from hvd_compress.generator import Site
from hvd_compress.indices import INDEX_CODECS, decode_indices, encode_indices, index_nbytes
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, real
from hvd_compress.payload import NONFINITE, NORMAL, Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["ScaleCom"]

_WORD = 4


@register("scalecom")
@dataclass(frozen=True)
class ScaleCom(Codec):
    """Keep the entries that are largest on one rank, another at each step, and add up those of all (CLT-k).

    Payloads do not grow with the number of ranks: the chosen indices are the first sum, to which all other ranks add
    zeros, the values the second.

    References
    ----------
    C.-Y. Chen et al., "ScaleCom: Scalable sparsified gradient compression for communication-efficient distributed
    training", 2020, algorithm 1.

    Parameters
    ----------
    density : float
        Fraction of entries sent, in (0, 1]; k = density * n, rounded half to even, at least 1.
    index_codec : str
        How indices travel: "auto", "ef", "bitmap", "u16" or "u32".

    Notes
    -----
    Deviation: indices are added up instead of broadcast, because Horovod fuses sums of many tensors into one. The
    paper's beta is `low_pass` of the error feedback.

    Examples
    --------
    >>> from hvd_compress import TensorSpec
    >>> from hvd_compress.codecs import ScaleCom
    >>> ScaleCom(density=0.001).part_nbytes(TensorSpec((25_600_000,), "float32"))
    (38252, 102400)
    """

    density: float = real(0.01, 0.0, 1.0, "fraction of entries sent", low_open=True)
    index_codec: str = choice("auto", INDEX_CODECS, "how indices travel")

    paper = "Chen et al. 2020"
    knobs = ("density",)

    @property
    def reduction(self) -> Reduction:
        return Reduction.TWO_PHASE

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        n = ops.shape(x)[0]
        k = kept_count(self.density, n)
        if (site.step - site.rank) % site.world_size == 0:
            packed = encode_indices(ops, ops.largest(x, k), n, k, self.index_codec)
            filled = ops.concat([packed, ops.zeros(-ops.shape(packed)[0] % _WORD, "uint8")])
            # Horovod cannot add bytes in PyTorch.
            first = ops.from_bytes(filled, "int32")
        else:
            first = ops.zeros(self._words(n), "int32")
        # A bad entry need not be among those that another rank chooses.
        flag = ops.where(ops.all_finite(x), NORMAL, NONFINITE)
        return Payload((first,), flag, entries=k, source=x), state

    def encode_second(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return ops.take(payload.source, self._indices(ops, payload, spec))

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.decode_into(ops, payload, spec, site, None)

    def decode_into(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site, into: Array | None) -> Array:
        total = ops.zeros(spec.numel) if into is None else into
        entries = self._indices(ops, payload, spec), ops.divide(payload.parts[1], site.world_size)
        return ops.sum_entries([entries], ops.constant((1.0,), "float32"), total)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        indices = self._indices(ops, payload, spec)
        # What a rank adds to the sum is what it has there.
        left = ops.where(ops.all_finite(payload.parts[1]), 0.0, ops.take(x, indices))
        return ops.put(x, indices, left)

    def _indices(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> Array:
        k = kept_count(self.density, spec.numel)
        packed = ops.to_bytes(payload.parts[0])[: index_nbytes(spec.numel, k, self.index_codec)]
        return decode_indices(ops.trusting(), packed, spec.numel, k, self.index_codec)

    def _words(self, n: int) -> int:
        """Integers that hold the indices."""
        return -(-index_nbytes(n, kept_count(self.density, n), self.index_codec) // _WORD)

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return (kept_count(self.density, spec.numel),)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        (k,) = self.counts(spec)
        return _WORD * self._words(spec.numel), 4 * k
