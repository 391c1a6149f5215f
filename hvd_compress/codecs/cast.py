"""Half precision on the wire."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Reduction, State
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, flag
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register
from hvd_compress.wire import flag_of

__all__ = ["Cast"]


@register("cast")
@dataclass(frozen=True)
class Cast(Codec):
    """Send every entry in 16 bits.

    float16 is added by Horovod's allreduce. bfloat16 is gathered and added in float32, because neither MPI nor Gloo can
    add it; every rank then receives all ranks' 2n bytes.

    Parameters
    ----------
    dtype : str
        "float16" (relative error 2**-11 in its normal range) or "bfloat16" (2**-8).
    prescale : bool
        float16: divide by the number of ranks before the sum, so that an average of finite gradients cannot overflow.

    Examples
    --------
    >>> from hvd_compress import Cast, TensorSpec
    >>> Cast(dtype="float16").payload_nbytes(TensorSpec((10, 10), "float32"))
    200
    """

    dtype: str = choice("float16", ("float16", "bfloat16"), "how entries travel")
    prescale: bool = flag(True, "float16: divide by the number of ranks before the sum")

    paper = "none (IEEE 754 binary16, bfloat16)"

    @property
    def reduction(self) -> Reduction:
        return Reduction.SUM if self.dtype == "float16" else Reduction.GATHER

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        counts = (ops.shape(x)[0],)
        if self.reduction is Reduction.SUM:
            halves = ops.cast(ops.scale(x, self._factor(site)), "float16")
            return Payload((halves,), flag_of(ops, ops.float32(halves)), counts), state
        return Payload((ops.round_floats(x, self.dtype),), flag_of(ops, x), counts), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        (halves,) = payload.parts
        if self.reduction is Reduction.SUM:
            values = ops.float32(halves)
            return ops.scale(values, 1.0 / self._factor(site), values)
        return ops.read_floats(halves, self.dtype)

    def _factor(self, site: Site) -> float:
        return 1.0 / site.world_size if self.prescale else 1.0

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return (2 * spec.numel,)
