"""One optimizer's exchanges on this rank: the state of its tensors and the steps they have made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hvd_compress.codec import Codec, State
from hvd_compress.codecs.none import Dense
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import TensorSpec
from hvd_compress.policy import Policy
from hvd_compress.registry import config_of
from hvd_compress.sharing import Sharing
from hvd_compress.slot import Slot

__all__ = ["Session"]


class Session:
    """The tensors that are exchanged together, step by step.

    A step begins with the first tensor that is sent after a result of the step before was received, or that is sent
    a second time.

    Parameters
    ----------
    loss_scale : callable, optional
        Returns the loss scaler's current scale; given, every step commits late.
    prefix : str
        What stands before the tensors' names in their keys.
    overlapping : bool
        Whether the first results of a step may come before all of it is sent, as in a graph: a step then begins only
        with a tensor that is sent a second time.
    """

    def __init__(
        self, loss_scale: Callable[[], float] | None = None, *, prefix: str = "", overlapping: bool = False
    ) -> None:
        self.prefix = prefix
        self.policy: Policy | None = None
        self.slots: dict[str, Slot] = {}
        self.steps = 0
        self.overflow = False
        self._loss_scale = loss_scale
        self._overlapping = overlapping
        self._scale: float | None = None
        self._sent: set[str] = set()
        self._receiving = True
        self._loaded: dict[str, Any] = {}
        self._flushes_loaded = False
        self.follows = False
        self.sharing = Sharing()

    @property
    def commits_late(self) -> bool:
        """Whether a new state waits for the next step."""
        return self._loss_scale is not None

    @property
    def step(self) -> int:
        """Number of the step that is being made, from 0."""
        return self.steps - 1

    @property
    def state_nbytes(self) -> int:
        """Bytes of what all tensors keep between steps."""
        return sum(slot.state_nbytes for slot in self.slots.values())

    def sending(self, key: str) -> bool:
        """Note that a tensor is about to be sent; return whether that begins a step."""
        begins = key in self._sent or not self._sent or (self._receiving and not self._overlapping)
        if begins:
            self.settle()
            self.sharing.finish(self.slots)
            self._rescale()
            self.steps += 1
            self.overflow = False
            self._receiving = False
            self._sent.clear()
        self._sent.add(key)
        return begins

    def received(self, overflow: bool) -> None:
        """Note that a result was received, and whether it was not finite (looked at where steps commit late)."""
        self._receiving = True
        self.overflow |= overflow

    def room(self, slot: Slot) -> State | None:
        """A state whose arrays a tensor's next one may overwrite: its own, unless steps commit late."""
        return slot.spare if self.commits_late else slot.state

    def update(self, slot: Slot, state: State) -> None:
        """Hand over a tensor's new state."""
        if self.commits_late:
            slot.hold(state)
        else:
            slot.state = state

    def settle(self) -> None:
        """Let the last step take effect unless it overflowed."""
        for slot in self.slots.values():
            slot.settle(accepted=not self.overflow)

    def _rescale(self) -> None:
        if self._loss_scale is None:
            return
        scale = float(self._loss_scale())
        if self._scale is not None and scale != self._scale:
            for slot in self.slots.values():
                slot.state = slot.codec.rescale(slot.state, scale / self._scale)
        self._scale = scale

    def slot(self, key: str, codec: Codec, spec: TensorSpec, ops: Kernels) -> Slot:
        """Return the slot of a tensor, made at its first use.

        Raises
        ------
        ValueError
            If the tensor was known under another shape or dtype, or its saved state is for another shape or codec.
        """
        slot = self.slots.get(key)
        if slot is None:
            slot = self.slots[key] = Slot(codec, spec, self._first_state(key, codec, spec, ops))
            saved = self._loaded.get(key, {})
            slot.budget, mark = saved.get("budget"), saved.get("flush")
            slot.flushing = mark is not None or (self._flushes_loaded and key in self._loaded)
            slot.delivered = slot.state if mark == "done" else None
            # It is a second copy of the state, as large as the model.
            self._loaded.pop(key, None)
        elif slot.spec != spec:
            raise ValueError(f"was {slot.spec} until now, got {spec}")
        return slot

    def _first_state(self, key: str, codec: Codec, spec: TensorSpec, ops: Kernels) -> State:
        state = codec.init(ops, spec)
        if key not in self._loaded:
            return state
        self.check_loaded(key, codec, spec)
        saved = self._loaded[key]
        state = {name: ops.assign(array, saved["state"][name]) for name, array in state.items()}
        for name, array in state.items():
            ops.require(ops.all_finite(array), f"the saved {name} holds inf or NaN")
        scale, saved_scale = self._scale or 1.0, saved["loss_scale"] or 1.0
        return state if scale == saved_scale else codec.rescale(state, scale / saved_scale)

    def saved_codec(self, key: str, always: bool) -> Mapping[str, Any] | None:
        """Config of the codec that a loaded state is of, if the tensor is on its way to another, or `always`."""
        saved = self._loaded.get(key)
        return saved["codec"] if saved is not None and (always or self.follows or saved.get("flush")) else None

    def check_loaded(self, key: str, codec: Codec, spec: TensorSpec) -> None:
        """Raise ``ValueError`` if the saved state of a tensor is for another shape or codec."""
        saved = self._loaded.get(key)
        if saved is None:
            return
        for what, ours, theirs in (
            ("shape", list(spec.shape), list(saved["shape"])),
            ("codec", config_of(codec), saved["codec"]),
        ):
            # A file may have made lists of tuples.
            if json.dumps(ours) != json.dumps(theirs):
                raise ValueError(f"the saved state is for {what} {theirs}, this run has {ours}")

    def flush(self) -> None:
        """Have each tensor's next exchange deliver what is unsent, of loaded state too."""
        self._flushes_loaded = True
        for slot in self.slots.values():
            slot.flushing = bool(slot.state) and not isinstance(slot.codec, Dense)

    def state_dict(self, copy: Callable[[Any], Any]) -> dict[str, Any]:
        """Describe every tensor that has a codec of its own: step, codec, shape and a copy of its state.

        Call it between steps, not between a backward pass and the optimizer's step.
        """
        if self._receiving:
            self.settle()
            self.sharing.finish(self.slots)
        saved = {
            key: {
                "step": self.steps,
                "loss_scale": self._scale,
                "codec": config_of(slot.codec),
                "budget": slot.budget,
                "flush": slot.flush_mark,
                "shape": list(slot.spec.shape),
                "state": {name: copy(array) for name, array in slot.state.items()},
            }
            for key, slot in self.slots.items()
            if slot.codec.name != "none"
        }
        return {**{key: value for key, value in self._loaded.items() if key not in self.slots}, **saved}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from saved state; each tensor takes its own at its next use."""
        self.slots.clear()
        self.sharing.clear()
        self._loaded, self._flushes_loaded, self.follows = dict(saved), False, False
        self._sent.clear()
        self._receiving, self.overflow = True, False
        steps = {value["step"] for value in saved.values()}
        self.steps = max(steps, default=0)
        self._scale = None
