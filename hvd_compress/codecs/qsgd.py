"""QSGD: quantisation to a few levels by stochastic rounding."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import EMPTY, NONFINITE, NORMAL, Array, Codec, Feedback, Payload, Reduction, State, TensorSpec
from hvd_compress.codecs._packing import PACKINGS, pack_levels, packed_nbytes, unpack_levels
from hvd_compress.generator import ROUNDING, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import check_parameters, choice, integer
from hvd_compress.registry import register

__all__ = ["QSGD"]

_TINY = 2.0**-100


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
        n = ops.shape(x)[0]
        parts, flag = self.quantise(ops, x, ops.arange(n), site)
        return Payload(parts, flag, (n,)), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.restore(ops, payload.parts, spec.numel)

    def quantise(self, ops: Kernels, x: Array, positions: Array, site: Site) -> tuple[tuple[Array, Array], Array]:
        """Sections (scales, codes) and flag of float32 entries that stand at `positions` of their tensor."""
        n, s = ops.shape(x)[0], self.s
        buckets, size = self._buckets(n)
        magnitudes = ops.reshape(ops.concat([x, ops.zeros(buckets * size - n)]), (buckets, size))
        magnitudes = ops.where(magnitudes < 0, -magnitudes, magnitudes)
        scales = self._scales(ops, magnitudes)
        used = ops.where(scales > 0, scales, 1.0)
        y = ops.flatten(magnitudes * ops.reshape(s / used, (-1, 1)))[:n]
        if self.rounding == "nearest":
            levels = ops.rint(y)
        else:
            levels = ops.floor(y)
            draws = ops.uniform(positions, generator_key(self.seed, site, ROUNDING))
            levels = levels + ops.cast(draws < y - levels, "float32")
        live = self._spread(ops, ops.cast(scales > 0, "int64"), n)
        levels = ops.cast(ops.clip(levels, 0.0, float(s)), "int64") * live
        negative = ops.negative(x) * live
        flag = ops.where(ops.all(ops.equal(scales, 0.0)), EMPTY, NORMAL)
        flag = ops.where(ops.all_finite(scales), flag, NONFINITE)
        return (ops.to_bytes(scales), pack_levels(ops, negative, levels, s, self.packing)), flag

    def restore(self, ops: Kernels, parts: tuple[Array, ...], n: int) -> Array:
        """Undo `quantise`; ``ValueError`` if the sections are damaged."""
        scales = ops.from_bytes(parts[0], "float32")
        ops.require(ops.all_finite(scales), "payload: a scale is not finite")
        ops.require(ops.all(scales >= 0), "payload: a scale is negative")
        negative, levels = unpack_levels(ops, parts[1], n, self.s, self.packing)
        values = ops.float32(levels) * self._spread(ops, ops.divide(scales, self.s), n)
        return ops.where(negative > 0, -values, values)

    def _buckets(self, n: int) -> tuple[int, int]:
        size = self.bucket_size or max(1, n)
        return -(-n // size), size

    def _scales(self, ops: Kernels, magnitudes: Array) -> Array:
        """Norm of each bucket; 0 where it is so small that dividing by it could overflow."""
        if self.norm == "max":
            bits = ops.max(ops.reshape(ops.magnitude_bits(ops.flatten(magnitudes)), ops.shape(magnitudes)))
            norms = ops.from_bytes(ops.to_bytes(bits), "float32")
        else:
            wide = ops.cast(magnitudes, "float64")
            norms = ops.float32(ops.sqrt(ops.sum(wide * wide)))
        return ops.where(norms < _TINY, ops.zeros(1), norms)

    def _spread(self, ops: Kernels, values: Array, n: int) -> Array:
        """Each bucket's value for each of its entries."""
        _, size = self._buckets(n)
        ones = ops.cast(ops.zeros(size), ops.dtype(values)) + 1
        return ops.flatten(ops.reshape(values, (-1, 1)) * ones)[:n]

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return self.section_nbytes(spec.numel)

    def section_nbytes(self, n: int) -> tuple[int, int]:
        """Bytes of the scales and the codes of n entries."""
        return 4 * self._buckets(n)[0], packed_nbytes(n, self.s, self.packing)
