"""Momentum after the reduction: what DGC does with tensors that it does not compress."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_compress.codec import Array, State
from hvd_compress.codecs.none import Dense
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import flag, real
from hvd_compress.payload import TensorSpec
from hvd_compress.registry import register

__all__ = ["DenseMomentum"]


@register("momentum")
@dataclass(frozen=True)
class DenseMomentum(Dense):
    """Send the gradient as it is; the optimizer gets the momentum of the combined one, as from momentum SGD.

    Parameters
    ----------
    momentum : float
        Weight of the past, in [0, 1).
    nesterov : bool
        Look one step ahead.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import Site, ops_for
    >>> x, state, site = np.float32([1, 2]), {"momentum": np.float32([4, 0])}, Site("w", step=0)
    >>> result, state = DenseMomentum(momentum=0.5).absorb(ops_for(x), x, state, site)
    >>> result.tolist()
    [3.0, 2.0]
    """

    momentum: float = real(0.9, 0.0, 1.0, "weight of the past", high_open=True)
    nesterov: bool = flag(False, "look one step ahead")

    wrapper = True
    paper = "Sutskever et al. 2013"

    @property
    def has_momentum(self) -> bool:
        return True

    @property
    def common_states(self) -> tuple[str, ...]:
        return ("momentum",)

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        return {"momentum": ops.zeros(spec.numel)}

    def absorb(self, ops: Kernels, reduced: Array, state: State, site: Site) -> tuple[Array, State]:
        gradient = ops.float32(reduced)
        momentum = ops.momentum(gradient, state["momentum"], self.momentum, self.nesterov)
        update = ops.scale_add(momentum, gradient, 1.0) if self.nesterov else momentum
        return ops.cond(
            ops.all_finite(gradient),
            # The optimizer may change what it gets; the state must not change with it.
            lambda: (ops.concat([update]), {**state, "momentum": momentum}),
            lambda: (gradient, state),
        )
