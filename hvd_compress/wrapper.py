"""What codecs that wrap another one have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import check_parameters
from hvd_compress.payload import Payload, TensorSpec

__all__ = ["FeedbackWrapper", "Wrapper"]


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
    def in_pieces(self) -> bool:
        return self.inner.in_pieces

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

    def absorb(self, ops: Kernels, reduced: Array, state: State, site: Site) -> tuple[Array, State]:
        return self.inner.absorb(ops, reduced, state, site)

    def cost(self, spec: TensorSpec) -> int:
        return self.inner.cost(spec)

    def cost_at(self, spec: TensorSpec, above: Array, lowest: int) -> int:
        return self.inner.cost_at(spec, above, lowest)

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return self.inner.counts(spec)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return self.inner.part_nbytes(spec)


class FeedbackWrapper(Wrapper):
    """A wrapper that keeps what its codec does not send, and decodes as it does."""

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.inner.feedback is Feedback.REFUSED:
            raise ValueError(
                f"{type(self).__name__}: inner must be a codec that loses something and does not scale up what it "
                f"sends, got {self.inner!r}"
            )

    @property
    def feedback(self) -> Feedback:
        return Feedback.REFUSED

    @property
    def unbiased(self) -> bool:
        return False

    def with_budget(self, budget: int) -> Codec:
        return self._around(self.inner.with_budget(budget))

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.inner.decode(ops, payload, spec, site)

    def decode_into(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site, into: Array | None) -> Array:
        return self.inner.decode_into(ops, payload, spec, site, into)

    def add_decoded(self, ops: Kernels, total: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return self.inner.add_decoded(ops, total, payload, spec, site)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        return self.inner.combine(ops, payloads, spec, site, factor, into)
