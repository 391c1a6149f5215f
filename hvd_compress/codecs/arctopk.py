"""Top-k rows by a sketch that all ranks share."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._sparse import kept_count
from hvd_compress.generator import SKETCH, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import integer, real
from hvd_compress.payload import NONFINITE, NORMAL, Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["ARCTopK"]


@register("arctopk")
@dataclass(frozen=True)
class ARCTopK(Codec):
    """Keep the rows of the gradient that are largest in the mean over the ranks, by a sketch of it.

    The flat gradient is cut into rows. Ranks add up their products with a random matrix of few columns; the rows with
    the largest squared length there are chosen by all alike, and added up in turn: no index is sent.

    References
    ----------
    C. Chen et al., "An all-reduce compatible top-K compressor for communication-efficient distributed learning", 2025;
    of it the abstract alone was relied on: a sketch that is shared aligns what the ranks choose. Rows of a fixed size,
    a Gaussian matrix and the choice by squared length are ours, not checked against the paper.

    Parameters
    ----------
    density : float
        Fraction of rows sent, in (0, 1].
    row_size : int
        Entries of a row; the last one is filled up with zeros.
    sketch_size : int
        Columns of the random matrix. The sketch takes sketch_size / row_size of the dense bytes.
    seed : int
        Of the random matrix; equal on all ranks.

    Notes
    -----
    The paper goes with ``feedback=ef21`` and `eta` below 1; plain error feedback is the default here too.

    Examples
    --------
    >>> from hvd_compress import TensorSpec
    >>> from hvd_compress.codecs import ARCTopK
    >>> ARCTopK().payload_nbytes(TensorSpec((25_600_000,), "float32"))
    2624000
    """

    density: float = real(0.01, 0.0, 1.0, "fraction of rows sent", low_open=True)
    row_size: int = integer(256, 1, "entries of a row")
    sketch_size: int = integer(4, 1, "columns of the random matrix", high=32)
    seed: int = integer(0, 0, "seed of the random matrix, equal on all ranks", high=2**64 - 1)

    paper = "Chen et al. 2025"
    knobs = ("density",)

    @property
    def reduction(self) -> Reduction:
        return Reduction.TWO_PHASE

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        draws = ops.gaussian(self.row_size * self.sketch_size, generator_key(self.seed, site, SKETCH))
        matrix = ops.reshape(self._filled(ops, x), (self._rows(ops.shape(x)[0]), self.row_size))
        first = ops.flatten(ops.product(matrix, ops.reshape(draws, (self.row_size, self.sketch_size))))
        # What is not finite in `x` shows in its product.
        finite = ops.all_finite(first)
        first = ops.where(finite, first, float("nan"))
        entries = kept_count(self.density, self._rows(ops.shape(x)[0])) * self.row_size
        flag = ops.where(finite, NORMAL, NONFINITE)
        return Payload((first,), flag, entries=min(entries, ops.shape(x)[0]), source=x), state

    def encode_second(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return ops.take(self._filled(ops, payload.source), self._indices(ops, payload, spec))

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        entries = self._indices(ops, payload, spec), ops.divide(payload.parts[1], site.world_size)
        total = ops.zeros(self._rows(spec.numel) * self.row_size)
        return ops.sum_entries([entries], ops.constant((1.0,), "float32"), total)[: spec.numel]

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        filled, indices = self._filled(ops, x), self._indices(ops, payload, spec)
        # What a rank adds to the sum is what it has there.
        left = ops.where(ops.all_finite(payload.parts[1]), 0.0, ops.take(filled, indices))
        return ops.put(filled, indices, left)[: spec.numel]

    def _indices(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> Array:
        """Places of the entries of the rows whose sums in the sketch are longest."""
        rows = self._rows(spec.numel)
        sketch = ops.cast(ops.reshape(payload.parts[0], (rows, self.sketch_size)), "float64")
        length = ops.zeros(rows, "float64")
        for column in range(self.sketch_size):
            length = length + sketch[:, column] * sketch[:, column]
        # The bits of numbers that are not negative are in their order.
        keys = ops.from_bytes(ops.to_bytes(length), "int64")
        chosen = ops.select_largest(keys, kept_count(self.density, rows))
        return ops.flatten(ops.reshape(chosen, (-1, 1)) * self.row_size + ops.arange(self.row_size))

    def _rows(self, numel: int) -> int:
        return -(-numel // self.row_size)

    def _filled(self, ops: Kernels, x: Array) -> Array:
        missing = -ops.shape(x)[0] % self.row_size
        return ops.concat([x, ops.zeros(missing)]) if missing else x

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return (kept_count(self.density, self._rows(spec.numel)),)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        rows, (chosen,) = self._rows(spec.numel), self.counts(spec)
        return 4 * rows * self.sketch_size, 4 * chosen * self.row_size
