"""Low-rank approximation by half a power iteration at a step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._low_rank import begun, sizes
from hvd_compress.codecs.none import Dense
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import integer, real
from hvd_compress.payload import NONFINITE, NORMAL, Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["AlternatingPowerSGD"]

_FACTORS = ("right", "left")
"""Which one the ranks have in common at even steps, and at odd ones; they add up the other."""


@register("powersgd_alternating")
@dataclass(frozen=True)
class AlternatingPowerSGD(Codec):
    """Send the two narrow matrices of PowerSGD in turn, one at a step, by a single sum.

    At even steps all ranks have an orthonormal Q, add up ``P = M Q`` and get ``P Q^T``; at odd ones they have P made
    orthonormal, add up ``Q = M^T P`` and get ``P Q^T``. A step sends about half of what `PowerSGD` does.

    References
    ----------
    T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed
    optimization", 2019; the alternation is that of its authors' later code, which halves each iteration.

    Parameters
    ----------
    rank : int
        Columns of P and Q; never more than the matrix has rows or columns.
    min_rate : float
        Tensors that would not become smaller by more than this factor, by the larger matrix, go dense.
    seed : int
        Of the random numbers that the first Q is; equal on all ranks.

    Notes
    -----
    A rank's residual is what the common factor cannot say of its own matrix, known before anything is sent. The codec
    of a step, from `at_step`, knows which factor is in turn.

    Examples
    --------
    >>> from hvd_compress import TensorSpec
    >>> from hvd_compress.codecs import AlternatingPowerSGD
    >>> codec, spec = AlternatingPowerSGD(rank=2), TensorSpec((30, 4, 10), "float32")
    >>> [codec.at_step(step).part_nbytes(spec) for step in (0, 1, 2)]
    [(240,), (320,), (240,)]
    """

    rank: int = integer(4, 1, "columns of the two factors", high=64)
    min_rate: float = real(2.0, 0.0, 1e9, "tensors that become smaller by no more than this go dense")
    seed: int = integer(0, 0, "seed of the first factor, equal on all ranks", high=2**64 - 1)

    paper = "Vogels et al. 2019"
    knobs = ("rank",)

    @property
    def reduction(self) -> Reduction:
        return Reduction.SUM

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    @property
    def in_pieces(self) -> bool:
        return False

    @property
    def common_states(self) -> tuple[str, ...]:
        return _FACTORS

    def at_step(self, step: int) -> Codec:
        return _half(self, step % 2)

    def for_tensor(self, name: str, spec: TensorSpec) -> Codec:
        return self if 4 * spec.numel > self.min_rate * self.payload_nbytes(spec) else Dense()

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        rows, columns, rank = sizes(spec, self.rank)
        lengths = {"left": rows, "right": columns}
        return {name: ops.reshape(ops.zeros(length * rank), (length, rank)) for name, length in lengths.items()}

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        factor, matrix = self._factor(ops, state, site), self._matrix(ops, ops.float32(x), state)
        sent = ops.flatten(_projected(ops, matrix, factor, _FACTORS[site.step % 2]))
        # What is not finite in `x` shows in its product.
        finite = ops.all_finite(sent)
        payload = Payload((sent,), ops.where(finite, NORMAL, NONFINITE), source=factor)
        return payload, state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.decode_into(ops, payload, spec, site, None)

    def decode_into(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site, into: Array | None) -> Array:
        # Whoever was not there can only know what all begin with.
        factor = self._factor(ops, self.init(ops, spec), site) if payload.source is None else payload.source
        (sent,), rank = payload.parts, ops.shape(factor)[1]
        length = ops.shape(sent)[0] // max(1, rank)
        if _FACTORS[site.step % 2] == "right":
            return ops.flatten(ops.product(ops.reshape(sent, (length, rank)), ops.transpose(factor), into))
        return ops.flatten(ops.product(factor, ops.reshape(sent, (rank, length)), into))

    def absorb(self, ops: Kernels, reduced: Array, state: State, site: Site) -> tuple[Array, State]:
        common = _FACTORS[site.step % 2]
        factor, matrix = self._factor(ops, state, site), self._matrix(ops, ops.float32(reduced), state)
        projected = _projected(ops, matrix, factor, common)
        found = ops.orthonormal(projected if common == "right" else ops.transpose(projected))
        # A gradient of zeros leaves nothing behind, not even what was drawn for it.
        kept = ops.where(ops.all(ops.equal(ops.flatten(found), 0.0)), 0.0, factor)
        new = {**state, _FACTORS[1 - site.step % 2]: found, common: kept}
        return reduced, ops.cond(ops.all_finite(matrix), lambda: new, lambda: state)

    def _matrix(self, ops: Kernels, x: Array, state: State) -> Array:
        return ops.reshape(x, (ops.shape(state["left"])[0], ops.shape(state["right"])[0]))

    def _factor(self, ops: Kernels, state: State, site: Site) -> Array:
        """What all ranks have in common at a step."""
        return ops.orthonormal(begun(ops, state[_FACTORS[site.step % 2]], self.seed, site))

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        rows, columns, rank = sizes(spec, self.rank)
        return (4 * rank * max(rows, columns),)

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class _Half(AlternatingPowerSGD):
    """The codec of one step."""

    turn: int = 0

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        rows, columns, rank = sizes(spec, self.rank)
        return (4 * rank * (rows, columns)[self.turn],)


@lru_cache(maxsize=64)
def _half(codec: AlternatingPowerSGD, turn: int) -> _Half:
    own = {field.name: getattr(codec, field.name) for field in fields(AlternatingPowerSGD)}
    return _Half(**own, turn=turn)


def _projected(ops: Kernels, matrix: Array, factor: Array, name: str) -> Array:
    """The matrix times the right factor, or the left one's rows times the matrix."""
    return ops.product(matrix, factor) if name == "right" else ops.product(ops.transpose(factor), matrix)
