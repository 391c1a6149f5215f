"""What codecs that wrap another one have in common."""

from __future__ import annotations

from dataclasses import replace

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import Payload, TensorSpec

__all__ = ["Wrapper"]


class Wrapper(Codec):
    """A codec that is as its inner one unless it says otherwise."""

    inner: Codec

    wrapper = True

    @property
    def reduction(self) -> Reduction:
        return self.inner.reduction

    @property
    def unbiased(self) -> bool:
        return self.inner.unbiased

    @property
    def fixed_size(self) -> bool:
        return self.inner.fixed_size

    @property
    def keeps_scale(self) -> bool:
        return self.inner.keeps_scale

    @property
    def common_states(self) -> tuple[str, ...]:
        return self.inner.common_states

    @property
    def entangled(self) -> bool:
        return self.inner.entangled

    @property
    def companion(self) -> Codec | None:
        return self.inner.companion

    @property
    def has_momentum(self) -> bool:
        return self.inner.has_momentum

    @property
    def shared_every(self) -> int:
        return self.inner.shared_every

    def at_step(self, step: int) -> Codec:
        return self._around(self.inner.at_step(step))

    def for_tensor(self, name: str, spec: TensorSpec) -> Codec:
        inner = self.inner.for_tensor(name, spec)
        # What goes dense needs nothing around it.
        dense = inner is not self.inner and inner.feedback is Feedback.REFUSED
        return inner if dense else self._around(inner)

    def _around(self, inner: Codec) -> Codec:
        return self if inner is self.inner else replace(self, inner=inner)  # type: ignore[type-var]

    def encode_second(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.inner.encode_second(ops, payload, spec, site)

    def conclude(self, ops: Kernels, payload: Payload, state: State, spec: TensorSpec, site: Site) -> State:
        return self.inner.conclude(ops, payload, state, spec, site)

    def cost(self, spec: TensorSpec) -> int:
        return self.inner.cost(spec)

    def cost_at(self, spec: TensorSpec, above: Array, lowest: int) -> int:
        return self.inner.cost_at(spec, above, lowest)

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return self.inner.counts(spec)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return self.inner.part_nbytes(spec)
