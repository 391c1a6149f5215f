"""EF21: ranks send what changes in their gradients, and keep what the others know of them."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Reduction, State
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import nested, real
from hvd_compress.payload import NONFINITE, Payload, TensorSpec
from hvd_compress.registry import register
from hvd_compress.wrapper import FeedbackWrapper

__all__ = ["EF21"]


@register("ef21")
@dataclass(frozen=True)
class EF21(FeedbackWrapper):
    """Error feedback by differences, around any contractive codec.

    Each rank encodes ``c = C(v - h)``, where h is what the others know of it, and adds c to h; all add the mean of c to
    ``H``, which the optimizer gets: it is the mean of h. v is the gradient, or with `eta` below 1 the average
    ``v = (1 - eta) * v + eta * g``, which begins with the first gradient that is not zero. h and H begin with zeros.

    References
    ----------
    P. Richtarik, I. Sokolov and I. Fatkhullin, "EF21: A new, simpler, theoretically better, and practically faster
    error feedback", 2021, algorithm 2; with `eta`: I. Fatkhullin, A. Tyurin and P. Richtarik, "Momentum provably
    improves error feedback!", 2023, algorithm 1.

    Parameters
    ----------
    inner : Codec
        The codec that is made up for.
    eta : float
        Weight of a new gradient in the average of gradients, in (0, 1].

    Notes
    -----
    A rank whose gradient is not finite keeps its state, and where the sum is not finite all begin anew with ``h = H =
    0``, unless a loss scaler throws the step away. So do other ranks than those that have saved the state.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import EF21, Site, TensorSpec, TopK, ops_for
    >>> x = np.array([3, 1, -4], np.float32)
    >>> codec, ops = EF21(TopK(density=0.3)), ops_for(x)
    >>> payload, state = codec.encode(ops, x, codec.init(ops, TensorSpec((3,), "float32")), Site("w", step=0))
    >>> state["known"].tolist()
    [0.0, 0.0, -4.0]
    """

    inner: Codec = nested(Codec, "the codec that is made up for")
    eta: float = real(1.0, 0.0, 1.0, "weight of a new gradient in the average of gradients", low_open=True)

    paper = "Richtarik et al. 2021; Fatkhullin et al. 2023"

    @property
    def common_states(self) -> tuple[str, ...]:
        return (*self.inner.common_states, "combined")

    @property
    def entangled(self) -> bool:
        return True

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        names = ("known", "combined", *(["average"] if self.eta < 1 else []))
        return {**self.inner.init(ops, spec), **{name: ops.zeros(spec.numel) for name in names}}

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        averaged = self._averaged(ops, ops.float32(x), state)
        gradient = averaged.get("average", ops.float32(x))
        payload, inner_state = self.inner.encode(ops, ops.subtract(gradient, state["known"]), state, site, out)
        spec = TensorSpec(ops.shape(x), "float32")

        def known() -> Array:
            # What a sum has taken up is known when it is there.
            if self.reduction is Reduction.TWO_PHASE:
                return state["known"]
            return self.inner.add_decoded(ops.trusting(), self._room(ops, state, out), payload, spec, site)

        return payload, ops.cond(
            ops.equal(payload.flag, NONFINITE), lambda: state, lambda: {**inner_state, **averaged, "known": known()}
        )

    def conclude(self, ops: Kernels, payload: Payload, state: State, spec: TensorSpec, site: Site) -> State:
        def concluded() -> State:
            inner_state, difference = self.inner.conclude(ops, payload, state, spec, site), payload.source
            left = self.inner.error(ops, ops.concat([difference]), payload, spec, site)
            return {**inner_state, "known": ops.scale_add(state["known"], ops.subtract(difference, left), 1.0)}

        return ops.cond(ops.equal(payload.flag, NONFINITE), lambda: state, concluded)

    def absorb(self, ops: Kernels, reduced: Array, state: State, site: Site) -> tuple[Array, State]:
        reduced, state = self.inner.absorb(ops, ops.float32(reduced), state, site)
        combined = ops.scale_add(state["combined"], reduced, 1.0)
        zeros = {name: ops.zeros(ops.shape(combined)[0]) for name in ("known", "combined")}
        return ops.cond(
            ops.all_finite(combined),
            # The optimizer may change what it gets; the state must not change with it.
            lambda: (ops.concat([combined]), {**state, "combined": combined}),
            lambda: (combined, {**state, **zeros}),
        )

    def release(self, ops: Kernels, x: Array, state: State, site: Site) -> tuple[Array, State]:
        averaged = self._averaged(ops, ops.float32(x), state)
        gradient = averaged.get("average", ops.float32(x))
        return ops.subtract(gradient, state["known"]), {**state, **averaged, "known": ops.concat([gradient])}

    def _averaged(self, ops: Kernels, x: Array, state: State) -> State:
        """The state of the average with gradient `x` taken up; empty where there is none."""
        if self.eta == 1:
            return {}
        largest = ops.bucket_maxima(state["average"], max(1, ops.shape(x)[0]))
        weight = ops.cast(ops.where(ops.magnitude_bits(largest) > 0, self.eta, 1.0), "float32")
        average = ops.scale_add(ops.scale(state["average"], 1.0 - weight), ops.scale(x, weight), 1.0)
        return {"average": average}

    def _room(self, ops: Kernels, state: State, out: State | None) -> Array:
        """What the others know, in an array that may be overwritten."""
        if out is None or (out is state and ops.waits):
            return ops.concat([state["known"]])
        return state["known"] if out is state else ops.assign(out["known"], state["known"])
