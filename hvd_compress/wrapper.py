"""What codecs that wrap another one have in common."""

from __future__ import annotations

from dataclasses import replace

from hvd_compress.codec import Array, Codec, Reduction
from hvd_compress.payload import TensorSpec

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
    def companion(self) -> Codec | None:
        return self.inner.companion

    @property
    def has_momentum(self) -> bool:
        return self.inner.has_momentum

    @property
    def shared_every(self) -> int:
        return self.inner.shared_every

    def at_step(self, step: int) -> Codec:
        inner = self.inner.at_step(step)
        return self if inner is self.inner else replace(self, inner=inner)  # type: ignore[type-var]

    def cost(self, spec: TensorSpec) -> int:
        return self.inner.cost(spec)

    def cost_at(self, spec: TensorSpec, above: Array, lowest: int) -> int:
        return self.inner.cost_at(spec, above, lowest)

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return self.inner.counts(spec)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return self.inner.part_nbytes(spec)
