"""Error feedback: what a codec failed to send is kept and added to the next gradient."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Reduction, State
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import nested, real
from hvd_compress.payload import NONFINITE, Addends, Payload, TensorSpec
from hvd_compress.registry import register
from hvd_compress.wrapper import FeedbackWrapper

__all__ = ["ErrorFeedback"]


@register("error_feedback")
@dataclass(frozen=True)
class ErrorFeedback(FeedbackWrapper):
    """Error feedback around any contractive codec.

    Each step encodes ``p = g + decay * e`` and keeps ``e = p - decode(encode(p))``; all float32, each product and sum
    rounded. A step whose ``p`` is not finite leaves ``e`` as it was. Codecs of two phases keep what their sums have not
    taken up of ``p``: all of it where a sum is not finite because of another rank. With `low_pass` b below 1 the
    residual follows slowly, ``e = (1 - b) * e + b * (p - decode(encode(p)))``; a part of what is not sent is forgotten.

    References
    ----------
    F. Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of
    speech DNNs", 2014; S. U. Stich et al., "Sparsified SGD with memory", 2018, algorithm 1; S. P. Karimireddy et al.,
    "Error feedback fixes signSGD and other gradient compression schemes", 2019. `low_pass`: C.-Y. Chen et al.,
    "ScaleCom", 2020, algorithm 1, for large batches and learning rates.

    Parameters
    ----------
    inner : Codec
        The codec that is made up for.
    decay : float
        Weight of the residual, in [0, 1].
    low_pass : float
        Weight of what is new in the residual, in (0, 1]. Below 1 codecs of two phases keep a second array.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import ErrorFeedback, Site, TopK, ops_for
    >>> x = np.array([3, 1, -4], np.float32)
    >>> codec, ops = ErrorFeedback(TopK(density=0.3)), ops_for(x)
    >>> payload, state = codec.encode(ops, x, {"residual": ops.zeros(3)}, Site("w", step=0))
    >>> state["residual"].tolist()
    [3.0, 1.0, 0.0]
    """

    inner: Codec = nested(Codec, "the codec that is made up for")
    decay: float = real(1.0, 0.0, 1.0, "weight of the residual")
    low_pass: float = real(1.0, 0.0, 1.0, "weight of what is new in the residual", low_open=True)

    paper = "Seide et al. 2014; Stich et al. 2018; Karimireddy et al. 2019"

    @property
    def _waits(self) -> bool:
        """Whether the residual of before is needed when the sums are there."""
        return self.low_pass < 1 and self.reduction is Reduction.TWO_PHASE

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        names = ("residual", *(["before"] if self._waits else []))
        return {**self.inner.init(ops, spec), **{name: ops.zeros(spec.numel) for name in names}}

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        room = None if out is None or self.low_pass < 1 else out["residual"]
        addends = Addends(ops.float32(x), state["residual"], self.decay, room)
        payload, inner_state, total = self.inner.encode_sum(ops, addends, state, site, out)
        spec = TensorSpec(ops.shape(x), "float32")

        def kept() -> State:
            # What a sum has taken up is known when it is there.
            if self.reduction is Reduction.TWO_PHASE:
                return {**inner_state, "residual": total, **({"before": state["residual"]} if self._waits else {})}
            error = self.inner.error(ops.trusting(), total, payload, spec, site)
            return {**inner_state, "residual": self._filtered(ops, state["residual"], error)}

        return payload, ops.cond(ops.equal(payload.flag, NONFINITE), lambda: state, kept)

    def conclude(self, ops: Kernels, payload: Payload, state: State, spec: TensorSpec, site: Site) -> State:
        def concluded() -> State:
            inner_state = self.inner.conclude(ops, payload, state, spec, site)
            error = self.inner.error(ops, state["residual"], payload, spec, site)
            return {**inner_state, "residual": self._filtered(ops, state.get("before"), error)}

        return ops.cond(ops.equal(payload.flag, NONFINITE), lambda: state, concluded)

    def _filtered(self, ops: Kernels, before: Array | None, error: Array) -> Array:
        if self.low_pass == 1:
            return error
        return ops.scale_add(ops.scale(before, 1 - self.low_pass), error, self.low_pass)

    def unsent(self, ops: Kernels, state: State) -> Array:
        return state["residual"]

    def holding(self, ops: Kernels, state: State, unsent: Array) -> State:
        return {**state, "residual": unsent}

    def release(self, ops: Kernels, x: Array, state: State, site: Site) -> tuple[Array, State]:
        total = ops.accumulate(ops.float32(x), state["residual"], self.decay)
        return total, {**state, "residual": ops.zeros(ops.shape(x)[0])}
