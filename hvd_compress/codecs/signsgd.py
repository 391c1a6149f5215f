"""signSGD with majority vote, and Signum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._signs import signs_nbytes
from hvd_compress.codecs.dense_sign import DenseSign
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import real
from hvd_compress.payload import NONFINITE, Payload, TensorSpec
from hvd_compress.registry import register
from hvd_compress.wire import flag_of

__all__ = ["SignSGD"]


@register("signsgd")
@dataclass(frozen=True)
class SignSGD(Codec):
    """Send the sign of each entry; each rank has a vote, and the optimizer gets 1, -1, or 0 where votes are equal.

    The learning rate alone sets how far a step goes: it must be far smaller than for gradients, some 1e-4 to 1e-2.
    Tensors that are too small to compress are averaged, and the optimizer gets their signs. A loss scaler is refused,
    because it would divide the signs.

    References
    ----------
    J. Bernstein et al., "signSGD: Compressed optimisation for non-convex problems", 2018 (signSGD, Signum, majority
    vote); "signSGD with majority vote is communication efficient and fault tolerant", 2019.

    Parameters
    ----------
    momentum : float
        Weight of the past in ``m = momentum * m + (1 - momentum) * g``, whose signs are sent, in [0, 1). 0 is signSGD,
        0.9 the usual Signum; the optimizer must then have no momentum of its own.

    Notes
    -----
    A vote is neither a sum nor an average: ``op=hvd.Average``, ``op=hvd.Sum`` and all positive scale factors give the
    same result. An entry that is exactly zero votes plus and minus in turn, by step and rank, so that one that is zero
    everywhere stays within one step of where it was; a rank on which the whole tensor is zero does not vote.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import Site, TensorSpec, ops_for
    >>> from hvd_compress.codecs import SignSGD
    >>> x = np.array([0.1, -2, 3], np.float32)
    >>> codec, ops, site = SignSGD(), ops_for(x), Site("w", step=0)
    >>> payload, _ = codec.encode(ops, x, {}, site)
    >>> codec.decode(ops, payload, TensorSpec((3,), "float32"), site).tolist()
    [1.0, -1.0, 1.0]
    """

    momentum: float = real(0.0, 0.0, 1.0, "weight of the past; above 0 this is Signum", high_open=True)

    paper = "Bernstein et al. 2018, 2019"

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    @property
    def feedback(self) -> Feedback:
        return Feedback.REFUSED

    @property
    def has_momentum(self) -> bool:
        return self.momentum > 0

    @property
    def keeps_scale(self) -> bool:
        return False

    @property
    def companion(self) -> DenseSign:
        return DenseSign(self.momentum)

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        return {"momentum": ops.zeros(spec.numel)} if self.momentum else {}

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x, after = ops.float32(x), state
        if self.momentum:
            x = ops.scale_add(ops.scale(x, 1.0 - self.momentum), state["momentum"], self.momentum)
            after = {"momentum": x}
        flag = flag_of(ops, x)
        votes = ops.pack_negative(x, (site.step + site.rank) % 2)
        payload = Payload((votes,), flag, (ops.shape(x)[0],))
        return payload, ops.cond(ops.equal(flag, NONFINITE), lambda: state, lambda: after)

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        n = spec.numel
        return ops.restore_codes(payload.parts[0], 1, self._values(ops), max(1, n), n)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        rows = [(payload.parts[0], self._values(ops)) for payload in payloads]
        return ops.sum_codes(rows, 1, max(1, spec.numel), factor, into)

    def _values(self, ops: Kernels) -> Array:
        """What the two signs stand for."""
        return ops.constant((1.0, -1.0), "float32")

    def absorb(self, ops: Kernels, reduced: Array, state: State, site: Site) -> tuple[Array, State]:
        gradient = ops.float32(reduced)
        return ops.signs(gradient, gradient), state

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return (signs_nbytes(spec.numel),)
