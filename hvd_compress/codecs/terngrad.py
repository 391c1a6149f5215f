"""TernGrad: quantisation to minus, zero and plus the largest magnitude."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._packing import packed_nbytes
from hvd_compress.codecs._scales import flag_of_scales, read_scales, usable
from hvd_compress.generator import ROUNDING, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, integer, real
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["TernGrad"]

_LOWER_BITS = 0b01010101


@register("terngrad")
@dataclass(frozen=True)
class TernGrad(Codec):
    """Send each entry as 0 or as plus or minus the tensor's largest magnitude, at random so that it is met on average.

    This is QSGD with one level and one bucket. Error feedback is refused: the error is often larger than the gradient.

    References
    ----------
    W. Wen et al., "TernGrad: Ternary gradients to reduce communication in distributed deep learning", 2017:
    ternarising by layer, and gradient clipping.

    Parameters
    ----------
    clip_sigma : float, optional
        Limit magnitudes to so many standard deviations first, 2.5 in the paper. Less variance, but a bias.
    packing : str
        "radix", five entries in a byte, or "bits", four.
    seed : int
        Of the rounding; every rank draws its own.

    Notes
    -----
    The standard deviation is that from zero, sqrt(mean(x**2)). The paper's second way, one scale that all ranks share
    so that their numbers can be added, needs another collective and is left out.

    Examples
    --------
    >>> from hvd_compress import TensorSpec
    >>> from hvd_compress.codecs import TernGrad
    >>> TernGrad().payload_nbytes(TensorSpec((1000, 1000), "float32"))
    200012
    """

    clip_sigma: float | None = real(None, 0.0, inf, "standard deviations to limit magnitudes to", low_open=True)
    packing: str = choice("radix", ("radix", "bits"), "how entries are packed: five or four in a byte")
    seed: int = integer(0, 0, "seed of the rounding", high=2**64 - 1)

    paper = "Wen et al. 2017"

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    @property
    def unbiased(self) -> bool:
        return self.clip_sigma is None

    @property
    def feedback(self) -> Feedback:
        return Feedback.REFUSED

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = self._clipped(ops, ops.float32(x))
        n = ops.shape(x)[0]
        scale = usable(ops, ops.bucket_maxima(x, max(1, n)))
        key = generator_key(self.seed, site, ROUNDING)
        codes = ops.pack_rounded(x, scale, max(1, n), 1, key)
        # Of the codes of four entries, with the sign as upper bit, to 0, 1 and 2.
        levels = ops.bit_and(codes, _LOWER_BITS)
        symbols = levels + ops.bit_and(levels, ops.shift_right(codes, 1))
        if self.packing == "radix":
            symbols = ops.pack_trits(symbols, n)
        return Payload((ops.to_bytes(scale), symbols), flag_of_scales(ops, scale), (n,)), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return ops.restore_levels(*self._coded(ops, payload, spec), max(1, spec.numel), 1, spec.numel)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        rows = [self._coded(ops, payload, spec) for payload in payloads]
        return ops.sum_levels(rows, max(1, spec.numel), 1, factor, into)

    def _coded(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> tuple[Array, Array]:
        """Codes of signs and levels, and the scale."""
        scale, symbols = read_scales(ops, payload.parts[0]), payload.parts[1]
        if self.packing == "radix":
            symbols = ops.unpack_trits(symbols, spec.numel)
        upper = ops.bit_and(ops.shift_right(symbols, 1), _LOWER_BITS)
        known = ops.all(ops.equal(ops.bit_and(upper, symbols), 0))
        symbols = ops.require(known, "payload: a symbol is above 2", symbols)
        return symbols + upper, scale

    def _clipped(self, ops: Kernels, x: Array) -> Array:
        if self.clip_sigma is None:
            return x
        n = max(1, ops.shape(x)[0])
        # A product, because graphs of TensorFlow make one of a division by a number, too.
        variance = ops.magnitude_sums(x, n, ("squares",))[0] * (1.0 / n)
        limit = ops.float32(ops.sqrt(variance) * self.clip_sigma)
        return ops.clip(x, -limit, limit)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        n = spec.numel
        return 4 * min(1, n), packed_nbytes(n, 1, "radix") if self.packing == "radix" else -(-2 * n // 8)
