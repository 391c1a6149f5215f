"""Deep gradient compression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf

from hvd_compress.codec import Array, Codec, Feedback, State
from hvd_compress.codecs._sparse import Sparsifier, pack_entries, sparse_nbytes, unpack_entries
from hvd_compress.codecs.momentum import DenseMomentum
from hvd_compress.generator import SAMPLING, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import choice, falling, flag, integer, real
from hvd_compress.payload import NONFINITE, Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["DGC"]


@register("dgc")
@dataclass(frozen=True)
class DGC(Sparsifier):
    """Top-k of accumulated momentum, with local clipping and a warm-up of the density.

    The optimizer must have no momentum of its own. Tensors that are too small to compress, and all of them at
    density 1, get momentum after the reduction.

    References
    ----------
    Y. Lin et al., "Deep gradient compression: Reducing the communication bandwidth for distributed training", 2018:
    momentum correction (eq. 5), factor masking (eq. 6), local clipping, warm-up.

    Parameters
    ----------
    density : float
        Fraction of entries sent, in (0, 1].
    momentum, nesterov
        As of momentum SGD.
    masking : bool
        Forget the momentum of entries that were sent.
    clip_norm : float, optional
        Clip each tensor's gradient to the norm clip_norm / sqrt(W) before it is accumulated.
    warmup_steps : int
        Steps of the warm-up, in equal phases.
    warmup_densities : list of float
        Density of each phase; at least `density` is used.
    selection : str
        "exact", or "sampled": by a threshold from a sample, as published; filled up with the first entries if few pass.
    sample_fraction : float
        Fraction of entries in the sample.
    value_dtype : str
        "float32" or "float16": how values travel.
    seed : int
        Of the sample.

    Examples
    --------
    >>> from hvd_compress import DGC, TensorSpec
    >>> codec = DGC(density=0.001, warmup_steps=40)
    >>> [codec.at_step(step).density for step in (0, 10, 20, 30, 40)]
    [0.25, 0.0625, 0.015625, 0.00390625, 0.001]
    """

    density: float = real(0.001, 0.0, 1.0, "fraction of entries sent", low_open=True)
    momentum: float = real(0.9, 0.0, 1.0, "weight of the past", high_open=True)
    nesterov: bool = flag(False, "look one step ahead")
    masking: bool = flag(True, "forget the momentum of entries that were sent")
    clip_norm: float | None = real(None, 0.0, inf, "norm to clip to, divided by sqrt(W)", low_open=True)
    warmup_steps: int = integer(0, 0, "steps of the warm-up, in equal phases")
    warmup_densities: tuple[float, ...] = falling((0.25, 0.0625, 0.015625, 0.00390625), "density of each phase")
    selection: str = choice("exact", ("exact", "sampled"), "how the largest entries are found")
    sample_fraction: float = real(0.01, 0.0, 1.0, "fraction of entries in the sample", low_open=True)
    value_dtype: str = choice("float32", ("float32", "float16"), "how values travel")
    seed: int = integer(0, 0, "seed of the sample", high=2**64 - 1)

    paper = "Lin et al. 2018"

    @property
    def feedback(self) -> Feedback:
        return Feedback.REFUSED

    @property
    def has_momentum(self) -> bool:
        return True

    @property
    def companion(self) -> DenseMomentum:
        return DenseMomentum(self.momentum, self.nesterov)

    def at_step(self, step: int) -> Codec:
        if step >= self.warmup_steps:
            return _with_density(self, self.density)
        phase = step * len(self.warmup_densities) // self.warmup_steps
        return _with_density(self, max(self.density, self.warmup_densities[phase]))

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        return {"momentum": ops.zeros(spec.numel), "velocity": ops.zeros(spec.numel)}

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        gradient = self._clipped(ops, ops.float32(x), site)
        past = state["momentum"], state["velocity"]
        room = None if out is None else (out["momentum"], out["velocity"])
        momentum, velocity = ops.add_momentum(gradient, *past, self.momentum, self.nesterov, room)
        indices = self._select(ops, velocity, self.kept(ops.shape(x)[0]), site)
        payload = pack_entries(ops, velocity, indices, self.value_dtype, "auto")
        spec = TensorSpec(ops.shape(x), "float32")

        def sent() -> State:
            masked = ops.put(momentum, indices, 0.0) if self.masking else momentum
            return {"momentum": masked, "velocity": self.error(ops.trusting(), velocity, payload, spec, site)}

        return payload, ops.cond(ops.equal(payload.flag, NONFINITE), lambda: state, sent)

    def unsent(self, ops: Kernels, state: State) -> Array:
        return state["velocity"]

    def holding(self, ops: Kernels, state: State, unsent: Array) -> State:
        return {**state, "velocity": unsent}

    def release(self, ops: Kernels, x: Array, state: State, site: Site) -> tuple[Array, State]:
        gradient, n = self._clipped(ops, ops.float32(x), site), ops.shape(x)[0]
        past = state["momentum"], state["velocity"]
        momentum, velocity = ops.add_momentum(gradient, *past, self.momentum, self.nesterov)
        return velocity, {"momentum": ops.zeros(n) if self.masking else momentum, "velocity": ops.zeros(n)}

    def _clipped(self, ops: Kernels, gradient: Array, site: Site) -> Array:
        if self.clip_norm is None:
            return gradient
        wide = ops.cast(gradient, "float64")
        norm = ops.sqrt(ops.ordered_sum(wide * wide))
        limit = ops.constant((self.clip_norm / site.world_size**0.5,), "float64")
        return ops.scale(gradient, ops.float32(limit / ops.where(norm > limit, norm, limit)))

    def _select(self, ops: Kernels, velocity: Array, k: int, site: Site) -> Array:
        n = ops.shape(velocity)[0]
        if self.selection == "exact" or k == n:
            return ops.largest(velocity, k)
        (indices,) = ops.run_eagerly(
            lambda ops, values: (self._sampled(ops, values, k, site),), (velocity,), (("int64", (k,)),)
        )
        return indices

    def _sampled(self, ops: Kernels, velocity: Array, k: int, site: Site) -> Array:
        n, bits = ops.shape(velocity)[0], ops.magnitude_bits(velocity)
        count = min(n, max(ceil(self.sample_fraction * n), ceil(2 / self.density)))
        stride = n // count
        draw = ops.random_bits(ops.arange(1), generator_key(self.seed, site, SAMPLING))
        sample = ops.take(bits, ops.arange(count) * stride + ops.shift_right(draw * stride, 32))
        top = ops.select_largest(sample, ceil(self.density * count))
        # As floats: the bits of a product are not the product of bits.
        threshold = ops.from_bytes(ops.to_bytes(ops.take(sample, top)), "float32")
        threshold = ops.take(threshold, ops.select_largest(-ops.take(sample, top), 1))
        for _ in range(10):
            passing = bits >= ops.magnitude_bits(threshold)
            enough = ops.sum(ops.cast(passing, "int64")) >= 0.8 * k
            if not ops.waits and enough:
                break
            threshold = ops.where(enough, threshold, threshold * 0.8)
        passing = bits >= ops.magnitude_bits(threshold)
        return ops.select_largest(ops.where(passing, bits, 0), k)

    def entries(self, ops: Kernels, payload: Payload, spec: TensorSpec) -> tuple[Array, Array]:
        (k,) = self.counts(spec)
        return unpack_entries(ops, payload, spec, k, self.value_dtype, "auto")

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        (k,) = self.counts(spec)
        return sparse_nbytes(spec.numel, k, self.value_dtype, "auto")


@lru_cache(maxsize=64)
def _with_density(codec: DGC, density: float) -> Codec:
    if density == 1.0:
        return codec.companion
    return replace(codec, density=density, warmup_steps=0)
