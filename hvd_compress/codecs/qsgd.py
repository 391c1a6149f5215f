"""QSGD: quantisation to a few levels by stochastic rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._packing import PACKINGS, pack_levels, packed_nbytes, unpack_levels
from hvd_compress.codecs._scales import flag_of_scales, read_scales, usable
from hvd_compress.generator import ROUNDING, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import check_parameters, choice, integer
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["QSGD"]


@register("qsgd")
@dataclass(frozen=True)
class QSGD(Codec):
    """Round each entry at random to one of 2s+1 levels, multiples of its bucket's norm / s, without bias.

    References
    ----------
    D. Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding", 2017, section 3.

    Parameters
    ----------
    bits : int
        Bits of a code, sign included, in [2, 8]: s = 2**(bits-1) - 1.
    levels : int, optional
        s itself, in [1, 255], instead of `bits`.
    bucket_size : int
        Entries that share a norm; 0 for all of a tensor.
    norm : str
        "max", or "l2" as published.
    rounding : str
        "stochastic", or "nearest" (which is biased).
    packing : str
        "bits"; "radix", several codes in one 32-bit word; "elias", whose size varies with the data.
    seed : int
        Of the rounding; every rank draws its own.

    Examples
    --------
    >>> from hvd_compress import QSGD, TensorSpec
    >>> QSGD(bits=4).payload_nbytes(TensorSpec((1000, 512), "float32"))
    260008
    >>> QSGD(levels=4, packing="radix").payload_nbytes(TensorSpec((1000, 512), "float32"))
    208808
    """

    bits: int = integer(4, 2, "bits of a code, sign included", high=8)
    levels: int | None = integer(None, 1, "levels above zero, instead of bits", high=255)
    bucket_size: int = integer(512, 0, "entries that share a norm; 0 for all")
    norm: str = choice("max", ("max", "l2"), "norm of a bucket")
    rounding: str = choice("stochastic", ("stochastic", "nearest"), "how entries are rounded")
    packing: str = choice("bits", PACKINGS, "how codes are packed")
    seed: int = integer(0, 0, "seed of the rounding", high=2**64 - 1)

    paper = "Alistarh et al. 2017"
    knobs = ("bucket_size", "bits")

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.levels is not None and self.bits != QSGD.bits:
            raise ValueError(f"QSGD: bits must be left out where levels is given, got {self.bits} and {self.levels}")

    @property
    def s(self) -> int:
        """Levels above zero."""
        return 2 ** (self.bits - 1) - 1 if self.levels is None else self.levels

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic"

    @property
    def fixed_size(self) -> bool:
        return self.packing != "elias"

    @property
    def feedback(self) -> Feedback:
        # With the L2 norm and few levels the error is larger than the input.
        return Feedback.OPTIONAL if self.norm == "max" else Feedback.REFUSED

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        parts, flag = self.quantise(ops, x, None, site)
        return Payload(parts, flag, (ops.shape(x)[0],)), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.restore(ops, payload.parts, spec.numel)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        if self.packing != "bits":
            return super().combine(ops, payloads, spec, site, factor, into)
        rows = [(payload.parts[1], self._units(ops, payload.parts)) for payload in payloads]
        return ops.sum_levels(rows, self._buckets(spec.numel)[1], self.s, factor, into)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        if self.packing != "bits":
            return super().error(ops, x, payload, spec, site)
        units = self._units(ops, payload.parts)
        return ops.subtract_levels(x, payload.parts[1], units, self._buckets(spec.numel)[1], self.s)

    def quantise(
        self, ops: Kernels, x: Array, positions: Array | None, site: Site
    ) -> tuple[tuple[Array, Array], Array]:
        """Sections (scales, codes) and flag of float32 entries at `positions` of their tensor, or of all of it."""
        _, size = self._buckets(ops.shape(x)[0])
        scales = self._scales(ops, x, size)
        key = None if self.rounding == "nearest" else generator_key(self.seed, site, ROUNDING)
        if positions is None and self.packing == "bits":
            codes = ops.pack_rounded(x, scales, size, self.s, key)
        else:
            negative, levels = ops.round_to_levels(x, scales, size, self.s, key, positions)
            codes = pack_levels(ops, negative, levels, self.s, self.packing)
        return (ops.to_bytes(scales), codes), flag_of_scales(ops, scales)

    def restore(self, ops: Kernels, parts: tuple[Array, ...], n: int) -> Array:
        """Undo `quantise`; ``ValueError`` if the sections are damaged."""
        _, size = self._buckets(n)
        units = self._units(ops, parts)
        if self.packing == "bits":
            return ops.restore_levels(parts[1], units, size, self.s, n)
        negative, levels = unpack_levels(ops, parts[1], n, self.s, self.packing)
        values = ops.float32(levels) * ops.spread(units, size, n)
        return ops.where(negative > 0, -values, values)

    def _units(self, ops: Kernels, parts: tuple[Array, ...]) -> Array:
        """What one level of each bucket is worth."""
        return ops.divide(read_scales(ops, parts[0]), self.s)

    def _buckets(self, n: int) -> tuple[int, int]:
        size = self.bucket_size or max(1, n)
        return -(-n // size), size

    def _scales(self, ops: Kernels, x: Array, size: int) -> Array:
        """Norm of each bucket; 0 where it is so small that dividing by it could overflow."""
        if self.norm == "max":
            norms = ops.bucket_maxima(x, size)
        else:
            filled = ops.concat([x, ops.zeros(-ops.shape(x)[0] % size)])
            wide = ops.cast(ops.reshape(filled, (-1, size)), "float64")
            norms = ops.float32(ops.sqrt(ops.sum(wide * wide)))
        return usable(ops, norms)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return self.section_nbytes(spec.numel)

    def section_nbytes(self, n: int) -> tuple[int, int]:
        """Bytes of the scales and the codes of n entries."""
        return 4 * self._buckets(n)[0], packed_nbytes(n, self.s, self.packing)
