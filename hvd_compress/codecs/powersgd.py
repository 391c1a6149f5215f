"""Low-rank approximation by power iteration."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._low_rank import begun, sizes
from hvd_compress.codecs.none import Dense
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import flag, integer, real
from hvd_compress.payload import NONFINITE, NORMAL, Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["PowerSGD"]


@register("powersgd")
@dataclass(frozen=True)
class PowerSGD(Codec):
    """Send a gradient as the product of two narrow matrices, found by a step of power iteration each time.

    The gradient is a matrix M with its first dimension as rows. Ranks add up ``P = M Q``, make its columns
    orthonormal, add up ``Q = M^T P``, and all get ``P Q^T``; `Q` is where the next step begins.

    References
    ----------
    T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed
    optimization", 2019, algorithms 1 and 2.

    Parameters
    ----------
    rank : int
        Columns of P and Q; never more than the matrix has rows or columns.
    min_rate : float
        Tensors that would not become smaller by more than this factor go dense.
    warm_start : bool
        Begin where the last step ended; otherwise with random numbers.
    seed : int
        Of the random numbers; equal on all ranks.

    Notes
    -----
    Deviations: a column counts as dependent on the earlier ones by its share outside of them, not by its length, so
    that small gradients are sent too. A column of Q that is zero begins anew. Products are those of
    `hvd_compress.ops.products`.

    Examples
    --------
    >>> from hvd_compress import TensorSpec
    >>> from hvd_compress.codecs import PowerSGD
    >>> PowerSGD(rank=2).part_nbytes(TensorSpec((30, 4, 10), "float32"))
    (240, 320)
    """

    rank: int = integer(4, 1, "columns of the two factors", high=64)
    min_rate: float = real(2.0, 0.0, 1e9, "tensors that become smaller by no more than this go dense")
    warm_start: bool = flag(True, "begin where the last step ended")
    seed: int = integer(0, 0, "seed of the first factor, equal on all ranks", high=2**64 - 1)

    paper = "Vogels et al. 2019"
    knobs = ("rank",)

    @property
    def reduction(self) -> Reduction:
        return Reduction.TWO_PHASE

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    @property
    def common_states(self) -> tuple[str, ...]:
        return ("basis",)

    def for_tensor(self, name: str, spec: TensorSpec) -> Codec:
        return self if 4 * spec.numel > self.min_rate * self.payload_nbytes(spec) else Dense()

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        _, columns, rank = sizes(spec, self.rank)
        return {"basis": ops.reshape(ops.zeros(columns * rank), (columns, rank))}

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x, (columns, _) = ops.float32(x), ops.shape(state["basis"])
        matrix = ops.reshape(x, (ops.shape(x)[0] // columns, columns))
        first = ops.flatten(ops.product(matrix, begun(ops, state["basis"], self.seed, site)))
        # What is not finite in `x` shows in its product.
        finite = ops.all_finite(first)
        payload = Payload((ops.where(finite, first, float("nan")),), ops.where(finite, NORMAL, NONFINITE), source=x)
        return payload, state

    def encode_second(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        rows, columns, _ = sizes(spec, self.rank)
        left = ops.transpose(self._orthonormal(ops, payload, spec))
        right = ops.product(left, ops.reshape(payload.source, (rows, columns)))
        return ops.flatten(ops.transpose(right))

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.decode_into(ops, payload, spec, site, None)

    def decode_into(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site, into: Array | None) -> Array:
        right = ops.transpose(self._mean(ops, payload, spec, site))
        return ops.flatten(ops.product(self._orthonormal(ops, payload, spec), right, into))

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        sent = self.decode(ops, payload, spec, site) if payload.kept is None else payload.kept
        arrived = ops.cond(ops.all_finite(sent), lambda: sent, lambda: ops.zeros(spec.numel))
        return ops.subtract(x, arrived, x)

    def conclude(self, ops: Kernels, payload: Payload, state: State, spec: TensorSpec, site: Site) -> State:
        if not self.warm_start:
            return state
        basis = self._mean(ops, payload, spec, site)
        return ops.cond(ops.all_finite(payload.kept), lambda: {**state, "basis": basis}, lambda: state)

    def _orthonormal(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> Array:
        rows, _, rank = sizes(spec, self.rank)
        return ops.orthonormal(ops.reshape(payload.parts[0], (rows, rank)))

    def _mean(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        _, columns, rank = sizes(spec, self.rank)
        return ops.reshape(ops.divide(payload.parts[1], site.world_size), (columns, rank))

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return ()

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        rows, columns, rank = sizes(spec, self.rank)
        return 4 * rank * rows, 4 * rank * columns
