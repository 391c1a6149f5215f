"""The optimizer that goes with a codec that applies momentum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["DGCSGD"]


class DGCSGD(torch.optim.Optimizer):
    """SGD that leaves the gradients' momentum to the codec and gives weight decay a momentum of its own.

    With ``Compression.dgc`` it takes the place of ``torch.optim.SGD(momentum=m, weight_decay=d)``. Weight decay then
    has the effect that it has there, about ``1 / (1 - m)`` times that of the same number in ``torch.optim.SGD`` without
    momentum. It is known on every rank, so that nothing of it needs to be sent.

    References
    ----------
    Lin et al., "Deep gradient compression", ICLR 2018, whose authors' code has an optimizer of this name.

    Parameters
    ----------
    params : iterable
        Parameters, or groups of them.
    lr : float
        At least 0.
    weight_decay : float
        At least 0.
    decay_momentum : float
        The codec's `momentum`, in [0, 1).
    nesterov : bool
        The codec's `nesterov`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        decay_momentum: float = 0.9,
        nesterov: bool = False,
    ) -> None:
        for name, value, high in (
            ("lr", lr, math.inf),
            ("weight_decay", weight_decay, math.inf),
            ("decay_momentum", decay_momentum, 1.0),
        ):
            if not 0 <= value < high:
                raise ValueError(f"{name} must be in [0, {high:g}), got {value}")
        settings = {"lr": lr, "weight_decay": weight_decay, "decay_momentum": decay_momentum, "nesterov": nesterov}
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; returns what `closure`, if given, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = parameter.grad
                    if group["weight_decay"]:
                        update = self._decay(parameter, group) + update
                    parameter.add_(update, alpha=-group["lr"])
        return loss

    def _decay(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        decay, momentum = parameter * group["weight_decay"], group["decay_momentum"]
        state = self.state[parameter]
        if "decay_buffer" not in state:
            state["decay_buffer"] = torch.zeros_like(parameter)
        buffer: torch.Tensor = state["decay_buffer"].mul_(momentum).add_(decay)
        return decay.add_(buffer, alpha=momentum) if group["nesterov"] else buffer
