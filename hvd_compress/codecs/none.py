"""No compression: the reference, and the way of small tensors."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["Dense"]


@register("none")
@dataclass(frozen=True)
class Dense(Codec):
    """Send the gradient as it is, in its own dtype, through Horovod's fused allreduce.

    bfloat16 travels as float32, because neither MPI nor Gloo can add it.

    Examples
    --------
    >>> from hvd_compress import Dense, TensorSpec
    >>> Dense().payload_nbytes(TensorSpec((10, 10), "float64"))
    800
    """

    paper = "none"

    @property
    def reduction(self) -> Reduction:
        return Reduction.SUM

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def feedback(self) -> Feedback:
        return Feedback.REFUSED

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        return Payload((ops.float32(x) if ops.dtype(x) == "bfloat16" else x,)), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return payload.parts[0]

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return (4 * spec.numel if spec.dtype == "bfloat16" else spec.nbytes,)
