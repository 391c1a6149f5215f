"""Blocks of 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Reduction, State
from hvd_compress.codecs._scales import flag_of_scales, read_scales, usable
from hvd_compress.generator import ROUNDING, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, integer
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["Int8"]

_LEVELS = 127


@register("int8")
@dataclass(frozen=True)
class Int8(Codec):
    """Round each entry to a multiple of its block's largest magnitude / 127, an integer of 8 bits.

    References
    ----------
    T. Dettmers, "8-bit approximations for parallelism in deep learning", 2015 (8-bit gradients); T. Dettmers et al.,
    "8-bit optimizers via block-wise quantization", 2022 (blocks of 2048, one scale each).

    Parameters
    ----------
    block_size : int
        Entries that share a scale, in [64, 65536].
    rounding : str
        "nearest", or "stochastic", which is unbiased.
    seed : int
        Of the stochastic rounding; every rank draws its own.

    Notes
    -----
    Steps are equal, where both papers use types with more steps near zero. The levels are those of QSGD with
    ``levels=127``; the bytes are plain int8, which other programs can read.

    Examples
    --------
    >>> from hvd_compress import TensorSpec
    >>> from hvd_compress.codecs import Int8
    >>> Int8().payload_nbytes(TensorSpec((2048, 1000), "float32"))
    2052008
    """

    block_size: int = integer(2048, 64, "entries that share a scale", high=65536)
    rounding: str = choice("nearest", ("nearest", "stochastic"), "how entries are rounded")
    seed: int = integer(0, 0, "seed of the rounding", high=2**64 - 1)

    paper = "Dettmers 2015; Dettmers et al. 2022"

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic"

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        scales = usable(ops, ops.bucket_maxima(x, self.block_size))
        key = None if self.rounding == "nearest" else generator_key(self.seed, site, ROUNDING)
        codes = _other_form(ops, ops.pack_rounded(x, scales, self.block_size, _LEVELS, key))
        return Payload((ops.to_bytes(scales), codes), flag_of_scales(ops, scales), (ops.shape(x)[0],)), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return ops.restore_levels(*self._coded(ops, payload), self.block_size, _LEVELS, spec.numel)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        rows = [self._coded(ops, payload) for payload in payloads]
        return ops.sum_levels(rows, self.block_size, _LEVELS, factor, into)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return ops.subtract_levels(x, *self._coded(ops, payload), self.block_size, _LEVELS)

    def _coded(self, ops: Kernels, payload: Payload) -> tuple[Array, Array]:
        """Codes of signs and levels, and what one level of each block is worth."""
        units = ops.divide(read_scales(ops, payload.parts[0]), _LEVELS)
        codes, lowest = payload.parts[1], f"payload: a code is below {-_LEVELS}"
        codes = ops.require(ops.all(~ops.equal(codes, _LEVELS + 1)), lowest, codes)
        return _other_form(ops, codes), units

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return 4 * -(-spec.numel // self.block_size), spec.numel


def _other_form(ops: Kernels, codes: Array) -> Array:
    """Two's complement of codes whose top bit is the sign, and the other way round."""
    negative = ops.shift_right(codes, 7)
    # No choice by entry, for which NumPy takes ten times as long.
    return ops.bit_xor(codes, negative * _LEVELS) + negative
