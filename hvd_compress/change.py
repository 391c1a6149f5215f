"""How a tensor goes over from one codec to the next without losing what was not sent."""

from __future__ import annotations

from hvd_compress.codec import State
from hvd_compress.ops.kernels import Kernels
from hvd_compress.policy import Policy
from hvd_compress.slot import Slot

__all__ = ["follow"]


def follow(slot: Slot, policy: Policy, name: str, ops: Kernels) -> None:
    """Have a tensor go over to what a policy chooses, before it is sent in a step.

    State stays, or what is unsent moves to where the new codec keeps it. Where that has no such place, the old codec
    is left one step later: after an exchange that delivers it.
    """
    unsent = slot.codec.unsent(ops, slot.state)
    if slot.flushing:
        # Not sent yet, or a rank's sum was not finite: once more.
        if slot.delivered is None or slot.state is not slot.delivered:
            slot.delivered = None
            return
        slot.flushing, slot.delivered, unsent = False, None, None
    if slot.policy is policy:
        return
    codec = policy.for_tensor(name, slot.spec)
    if codec != slot.codec:
        state = codec.init(ops, slot.spec)
        if _shapes(ops, state) == _shapes(ops, slot.state):
            state = slot.state
        elif unsent is not None:
            held = codec.holding(ops, state, unsent)
            if held is None:
                slot.flushing = True
                return
            state = held
        slot.change(codec, state)
    slot.policy = policy


def _shapes(ops: Kernels, state: State) -> dict[str, tuple[int, ...]]:
    return {key: ops.shape(array) for key, array in state.items()}
