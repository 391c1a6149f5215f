"""Natural compression: rounding to powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Reduction, State
from hvd_compress.generator import ROUNDING, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import integer
from hvd_compress.payload import EMPTY, NONFINITE, NORMAL, Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["Natural"]

_LARGEST = 127
_OFFSET = 18
"""Biased exponents of float32 that a code's are behind; so codes reach from 2**-108 to 2**18."""


@register("natural")
@dataclass(frozen=True)
class Natural(Codec):
    """Round each entry at random to one of the powers of two around it, so that it is met on average: 8 bits each.

    The variance is at most an eighth of the square of the gradient, whatever its length. Magnitudes above 2**18 are cut
    off, those below 2**-108 are zero.

    References
    ----------
    S. Horvath et al., "Natural compression for distributed deep learning", 2019 (the second moment grows by a factor of
    9/8 at most).

    Parameters
    ----------
    seed : int
        Of the rounding; every rank draws its own.

    Notes
    -----
    The paper sends the sign and all 8 bits of the exponent, 9 bits. Here the range is cut, so that a code is one byte.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import Site, TensorSpec, ops_for
    >>> from hvd_compress.codecs import Natural
    >>> x = np.array([4, -0.5, 0], np.float32)
    >>> codec, ops, site = Natural(), ops_for(x), Site("w", step=0)
    >>> payload, _ = codec.encode(ops, x, {}, site)
    >>> codec.decode(ops, payload, TensorSpec((3,), "float32"), site).tolist()
    [4.0, -0.5, 0.0]
    """

    seed: int = integer(0, 0, "seed of the rounding", high=2**64 - 1)

    paper = "Horvath et al. 2019"

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    @property
    def unbiased(self) -> bool:
        return True

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        n = ops.shape(x)[0]
        codes = ops.power_codes(x, _OFFSET, generator_key(self.seed, site, ROUNDING))
        flag = ops.where(ops.all(ops.equal(ops.bit_and(codes, _LARGEST), 0)), EMPTY, NORMAL)
        flag = ops.where(ops.all_finite(x), flag, NONFINITE)
        return Payload((codes,), flag, (n,)), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        n = spec.numel
        return ops.restore_codes(payload.parts[0], 8, self._values(ops), max(1, n), n)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        rows = [(payload.parts[0], self._values(ops)) for payload in payloads]
        return ops.sum_codes(rows, 8, max(1, spec.numel), factor, into)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return ops.subtract_codes(x, payload.parts[0], 8, self._values(ops), max(1, spec.numel))

    def _values(self, ops: Kernels) -> Array:
        """What each code stands for."""
        codes = ops.arange(256)
        levels = ops.bit_and(codes, _LARGEST)
        bits = ops.shift_left(ops.where(levels > 0, levels + _OFFSET, 0), 23)
        values = ops.from_bytes(ops.to_bytes(ops.cast(bits, "int32")), "float32")
        return ops.where(codes > _LARGEST, -values, values)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return (spec.numel,)
