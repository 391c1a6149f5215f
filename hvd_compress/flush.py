"""One dense exchange of a gradient with all that its codec has held back."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Reduction, State
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import Payload, TensorSpec

__all__ = ["Flush"]


@dataclass(frozen=True)
class Flush(Codec):
    """Send the gradient and everything unsent densely, as float32; afterwards nothing is unsent.

    A step whose sum is not finite leaves the state as it was.
    """

    inner: Codec

    name = "flush"
    paper = "none"

    @property
    def reduction(self) -> Reduction:
        return Reduction.SUM

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        total, after = self.inner.release(ops, x, state, site)
        return Payload((total,)), ops.cond(ops.all_finite(total), lambda: after, lambda: state)

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return payload.parts[0]

    def absorb(self, ops: Kernels, reduced: Array, state: State, site: Site) -> tuple[Array, State]:
        return self.inner.absorb(ops, reduced, state, site)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return (4 * spec.numel,)
