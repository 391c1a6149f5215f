"""Signs of averages: what signSGD does with tensors that it does not compress."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, State
from hvd_compress.codecs.none import Dense
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import real
from hvd_compress.payload import TensorSpec
from hvd_compress.registry import register

__all__ = ["DenseSign"]


@register("dense_sign")
@dataclass(frozen=True)
class DenseSign(Dense):
    """Send the gradient as it is; the optimizer gets the sign of each entry of the combined one, or of its momentum.

    Parameters
    ----------
    momentum : float
        Weight of the past, in [0, 1), as for signSGD.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import Site, ops_for
    >>> from hvd_compress.codecs import DenseSign
    >>> x = np.float32([0.1, -2, 0])
    >>> DenseSign().absorb(ops_for(x), x, {}, Site("w", step=0))[0].tolist()
    [1.0, -1.0, 0.0]
    """

    momentum: float = real(0.0, 0.0, 1.0, "weight of the past", high_open=True)

    wrapper = True
    paper = "Bernstein et al. 2018"

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def has_momentum(self) -> bool:
        return self.momentum > 0

    @property
    def keeps_scale(self) -> bool:
        return False

    @property
    def common_states(self) -> tuple[str, ...]:
        return ("momentum",)

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        return {"momentum": ops.zeros(spec.numel)} if self.momentum else {}

    def absorb(self, ops: Kernels, reduced: Array, state: State, site: Site) -> tuple[Array, State]:
        gradient = ops.float32(reduced)
        if not self.momentum:
            return ops.signs(gradient, gradient), state
        momentum = ops.scale_add(ops.scale(gradient, 1.0 - self.momentum), state["momentum"], self.momentum)
        return ops.cond(
            ops.all_finite(gradient),
            lambda: (ops.signs(momentum), {**state, "momentum": momentum}),
            lambda: (gradient, state),
        )
