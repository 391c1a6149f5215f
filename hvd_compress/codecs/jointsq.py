"""JointSQ: sparsification and quantisation as one allocation of bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hvd_compress.budget import BINS, BINS_PER_OCTAVE, count_magnitudes
from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._allocation import allocate, key_ratios
from hvd_compress.codecs._budget import WIDTHS, Budget, ValueBudget, WireBudget, used_nbytes
from hvd_compress.codecs._fit_rows import Groups, fit_rows, spread_rows
from hvd_compress.codecs._groups import COMMON, Group, entries_of, read_groups, write_groups
from hvd_compress.codecs._levels import fit_levels, spread_levels
from hvd_compress.codecs._unseen import Quantise, encode_unseen
from hvd_compress.generator import ROUNDING, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import check_parameters, choice, integer, real
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["JointSQ"]

_ENTRIES = (("int64", (None,)), ("float32", (None,))) * len(WIDTHS)


@register("jointsq")
@dataclass(frozen=True)
class JointSQ(Codec):
    """Give each entry 0, 2, 4 or 8 bits so that the error is smallest within a budget.

    Leaving an entry out is quantisation to 0 bits. The knapsack over all entries is solved greedily, which comes to
    three thresholds of the magnitudes. The entries of each width are quantised to levels fitted to them.

    References
    ----------
    Xie et al., "JointSQ: Joint sparsification-quantization for distributed learning", CVPR 2024.

    Parameters
    ----------
    bits_per_entry : float
        Size of the payload in bits for each entry of the tensor, sent or not, in (0, 8]; 32 / `bits_per_entry` is the
        compression ratio. Small tensors need at least 64 bytes.
    accounting : str
        "wire": all bytes count, and the size is fixed; "values": only the codes do, as in the paper, and the size
        varies with the data.
    index_cost_bits : float
        What the choice between more entries and more bits charges for an entry's position.
    rounding : str
        "nearest", or "stochastic" on levels from the smallest to the largest value of each width.
    fit_iters : int
        Rounds of fitting the levels; for "nearest".
    seed : int
        Of the stochastic rounding; every rank draws its own.
    scope : str
        "tensor": each has its own budget; "model": all share one, with the same thresholds; for "wire" only.
    rebudget_steps : int
        Steps between counts of magnitudes, for scope "model".

    Notes
    -----
    Deviations from the authors' code: codes, positions and levels are sent, and counted; 2, 4 and 8 bits hold 4, 16 and
    256 values, not 5, 17 and 257; the last profit is 255/262144, not rounded; every budget is filled by a prefix in
    order of profit, not by index; all tensors are eligible, not only 4-D ones.

    Levels of a width are equally spaced. Where a few entries are a hundred times as large as the smallest that get 8
    bits, more bits can therefore mean a larger error; error feedback makes up for it.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import JointSQ, Site, TensorSpec, ops_for
    >>> x = np.array([8, -0.1, 0, 1, -8, 0.2], np.float32)
    >>> codec, ops, site = JointSQ(bits_per_entry=1, accounting="values"), ops_for(x), Site("w", step=0)
    >>> payload, _ = codec.encode(ops, x, {}, site)
    >>> codec.decode(ops, payload, TensorSpec((6,), "float32"), site).tolist()
    [8.0, 0.0, 0.0, 0.0, -8.0, 0.0]
    >>> JointSQ(bits_per_entry=0.32).payload_nbytes(TensorSpec((25_600_000,), "float32"))
    1024000
    """

    bits_per_entry: float = real(0.32, 0.0, 8.0, "bits sent for each entry of the tensor", low_open=True)
    accounting: str = choice("wire", ("wire", "values"), "what counts as sent: all bytes, or the codes alone")
    index_cost_bits: float = real(0.0, 0.0, 30.0, "charge for a position when bits are allotted")
    rounding: str = choice("nearest", ("nearest", "stochastic"), "how entries are rounded")
    fit_iters: int = integer(2, 0, "rounds of fitting the levels", high=8)
    seed: int = integer(0, 0, "seed of the stochastic rounding", high=2**64 - 1)
    scope: str = choice("tensor", ("tensor", "model"), "whose entries share a budget")
    rebudget_steps: int = integer(100, 1, "steps between counts of magnitudes, for scope model")
    payload_budget: int | None = field(default=None, repr=False)

    paper = "Xie et al. 2024"
    knobs = ("bits_per_entry",)

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.scope == "model" and self.accounting == "values":
            raise ValueError("JointSQ: scope must be 'tensor' with accounting='values', got 'model'")

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    @property
    def fixed_size(self) -> bool:
        return self.accounting == "wire"

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    def budget(self, numel: int) -> Budget:
        """What a tensor of so many entries may take."""
        if self.accounting == "values":
            return ValueBudget(numel, math.ceil(numel * self.bits_per_entry))
        if self.payload_budget is not None:
            return WireBudget(numel, self.payload_budget)
        # The small addend is for products like 0.07 * 100 / 4 that come out below the integer that they are.
        return WireBudget(numel, max(64, 4 * math.floor(numel * self.bits_per_entry / 32 + 1e-6)))

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        numel = ops.shape(x)[0]
        budget, due = self.budget(numel), self.shared_every and site.step % self.shared_every == 0
        magnitudes = count_magnitudes(ops, x) if due else None
        if ops.waits and isinstance(budget, WireBudget):
            found = encode_unseen(ops, x, budget, key_ratios(self.index_cost_bits), self._quantiser(ops, site))
            entries = found.indices, found.values
            return Payload((found.body,), found.flag, (), entries, magnitudes, found.count), state
        length = self.part_nbytes(TensorSpec((numel,), "float32"))[0] if self.fixed_size else None
        outputs = (("uint8", (length,)), ("int64", ()), *_ENTRIES)
        body, flag, *kept = ops.run_eagerly(lambda ops, x: self._write(ops, x, site), (x,), outputs)
        return Payload((body,), flag, (), tuple(kept), magnitudes), state

    @property
    def shared_every(self) -> int:
        return self.rebudget_steps if self.scope == "model" else 0

    def cost_at(self, spec: TensorSpec, above: Array, lowest: int) -> int:
        ratios = key_ratios(self.index_cost_bits)
        bins = [lowest, *(min(BINS, lowest + round(BINS_PER_OCTAVE * math.log2(ratio))) for ratio in ratios[1:])]
        reached = [int(above[place]) for place in bins]
        kept = [reached[0] - reached[1], reached[1] - reached[2], reached[2]]
        return max(64, used_nbytes(spec.numel, kept))

    def with_budget(self, budget: int) -> JointSQ:
        return replace(self, payload_budget=max(64, budget // 4 * 4))

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.add_decoded(ops, ops.zeros(spec.numel), payload, spec, site)

    def add_decoded(self, ops: Kernels, total: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        for indices, values in self._entries(ops, payload, spec.numel):
            total = ops.scatter_add(total, indices, values)
        return total

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        rows = (entries for payload in payloads for entries in self._entries(ops, payload, spec.numel))
        return ops.sum_entries(rows, factor, into)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        for indices, values in self._entries(ops, payload, spec.numel):
            x = ops.scatter_add(x, indices, -values)
        return x

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return ()

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return (self.budget(spec.numel).nbytes - COMMON,)

    def _write(self, ops: Kernels, x: Array, site: Site) -> tuple[Array, ...]:
        """Payload without the common header, flag, and what a receiver will read: indices and values by width."""
        budget = self.budget(ops.shape(x)[0])
        flag, chosen = allocate(ops, x, budget, key_ratios(self.index_cost_bits))
        pairs = zip(chosen, WIDTHS, strict=True)
        groups = [self._quantise(ops, *entries, width, site) for entries, width in pairs]
        body = write_groups(ops, groups, budget)
        return body, ops.reshape(ops.constant((flag,), "int64"), ()), *entries_of(ops, groups)

    def _quantise(self, ops: Kernels, indices: Array, values: Array, width: int, site: Site) -> Group:
        if ops.shape(values)[0] == 0:
            return Group(indices, ops.zeros(2), indices)
        if self.rounding == "nearest":
            return Group(indices, *fit_levels(ops, values, width, self.fit_iters))
        draws = ops.uniform(indices, generator_key(self.seed, site, ROUNDING))
        return Group(indices, *spread_levels(ops, values, width, draws))

    def _quantiser(self, ops: Kernels, site: Site) -> Quantise:
        """`_quantise` by operations that look at no number."""

        def quantise(indices: Array, group: Groups, width: int) -> tuple[Array, Array]:
            if self.rounding == "nearest":
                return fit_rows(ops, group, width, self.fit_iters)
            draws = ops.uniform(indices, generator_key(self.seed, site, ROUNDING))
            return spread_rows(ops, group, width, ops.reshape(draws, (1, -1)))

        return quantise

    def _entries(self, ops: Kernels, payload: Payload, numel: int) -> list[tuple[Array, Array]]:
        """Indices and values of each width; ``ValueError`` if the payload is damaged."""
        found = payload.kept
        if found is None:
            budget = self.budget(numel)
            found = ops.run_eagerly(lambda ops, body: read_groups(ops, body, budget), payload.parts, _ENTRIES)
        return list(zip(found[::2], found[1::2], strict=True))
