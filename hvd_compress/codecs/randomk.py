"""Random-k sparsification with a selection that all ranks share."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._sparse import VALUE_NBYTES, kept_count
from hvd_compress.generator import MASK, SHARED_SELECTION, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, integer, real
from hvd_compress.payload import NONFINITE, NORMAL, Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["RandomK"]


@register("randomk")
@dataclass(frozen=True)
class RandomK(Codec):
    """Keep k entries drawn at random, the same on all ranks: no index is sent and payloads are added by allreduce.

    References
    ----------
    S. U. Stich et al., "Sparsified SGD with memory", 2018 (rand-k); J. Wangni et al., "Gradient sparsification for
    communication-efficient distributed optimization", 2018 (unbiased scaling).

    Parameters
    ----------
    density : float
        Fraction of entries sent, in (0, 1].
    mode : str
        "ef": entries as they are, for error feedback. "unbiased": divided by the probability of being chosen.
    selection : str
        "stratified": one of each of k equal blocks, O(k); "uniform": any k entries, O(n); "block": k neighbours.
    seed : int
        Of the draws; equal on all ranks.
    value_dtype : str
        "float32" or "float16": how values travel. float16 values are divided by the number of ranks before the sum.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import RandomK, Site, ops_for
    >>> x = np.arange(16, dtype=np.float32)
    >>> payload, _ = RandomK(density=0.25, seed=1234).encode(ops_for(x), x, {}, Site("fc.weight", step=7))
    >>> payload.parts[0].tolist()
    [2.0, 4.0, 9.0, 12.0]
    """

    density: float = real(0.01, 0.0, 1.0, "fraction of entries sent", low_open=True)
    mode: str = choice("ef", ("ef", "unbiased"), "unscaled for error feedback, or scaled to be unbiased")
    selection: str = choice("stratified", ("stratified", "uniform", "block"), "how entries are drawn")
    seed: int = integer(0, 0, "seed of the draws, equal on all ranks", high=2**64 - 1)
    value_dtype: str = choice("float32", ("float32", "float16"), "how values travel")

    paper = "Stich et al. 2018; Wangni et al. 2018"
    knobs = ("density",)

    @property
    def reduction(self) -> Reduction:
        return Reduction.SUM

    @property
    def unbiased(self) -> bool:
        return self.mode == "unbiased"

    @property
    def feedback(self) -> Feedback:
        return Feedback.REQUIRED if self.mode == "ef" else Feedback.REFUSED

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        n = ops.shape(x)[0]
        indices, inverse_probability = self._selection(ops, n, site)
        values = ops.take(x, indices)
        if self.unbiased:
            values = ops.scale(values, inverse_probability)
        if self.value_dtype == "float16":
            values = ops.cast(ops.limit(values * (1.0 / site.world_size), "float16"), "float16")
        # Here a bad entry need not be among the chosen ones.
        flag = ops.where(ops.all_finite(x), NORMAL, NONFINITE)
        return Payload((values,), flag, (ops.shape(indices)[0],), indices), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.decode_into(ops, payload, spec, site, None)

    def decode_into(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site, into: Array | None) -> Array:
        total = ops.zeros(spec.numel) if into is None else into
        entries = self._indices(ops, payload, spec, site), self._values(ops, payload, site)
        return ops.sum_entries([entries], ops.constant((1.0,), "float32"), total)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        indices = self._indices(ops, payload, spec, site)
        return ops.scatter_add(x, indices, -self._values(ops, payload, site))

    def _values(self, ops: Kernels, payload: Payload, site: Site) -> Array:
        (values,) = payload.parts
        return ops.float32(values) * float(site.world_size) if self.value_dtype == "float16" else values

    def _indices(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self._selection(ops, spec.numel, site)[0] if payload.kept is None else payload.kept

    def _selection(self, ops: Kernels, n: int, site: Site) -> tuple[Array, Array]:
        """Chosen indices, and for each the inverse of its probability."""
        k = kept_count(self.density, n)
        key = generator_key(self.seed, site, SHARED_SELECTION)
        if self.selection == "stratified":
            indices, sizes = ops.draw_strata(n, k, key)
            return indices, ops.cast(sizes, "float32")
        blocks = ops.arange(k)
        scale = ops.cast(blocks * 0 + 1, "float32") * (n / max(1, k))
        if self.selection == "uniform":
            return ops.select_largest(MASK - ops.random_bits(ops.arange(n), key), k), scale
        start = ops.shift_right(ops.random_bits(ops.arange(1), key) * n, 32)
        moved = blocks + start
        return ops.where(moved >= n, moved - n, moved), scale

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return (kept_count(self.density, spec.numel),)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return (VALUE_NBYTES[self.value_dtype] * kept_count(self.density, spec.numel),)
