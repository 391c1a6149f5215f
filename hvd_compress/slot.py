"""One tensor's codec and state on this rank."""

from __future__ import annotations

import math

from hvd_compress.codec import Array, Codec, State
from hvd_compress.flush import Flush
from hvd_compress.payload import TensorSpec
from hvd_compress.policy import Policy

__all__ = ["Slot"]


_STATE_ITEM = 4
"""Bytes of an entry of a state: they are float32, in every framework."""


class Slot:
    """One tensor's codec and state.

    Attributes
    ----------
    policy : Policy, optional
        That chose the codec.
    flushing : bool
        Whether the next exchange delivers what is unsent.
    delivered : mapping, optional
        The state once it has.

    A new state takes effect at once or, where a loss scaler may still throw the step away, when the next step begins:
    until then it waits beside the old one. The two sets of arrays change places, so nothing is allocated each step.
    """

    def __init__(self, codec: Codec, spec: TensorSpec, state: State) -> None:
        self.codec = codec
        self.spec = spec
        self.state = state
        self.budget: int | None = None
        self.policy: Policy | None = None
        self.flushing = False
        self.delivered: State | None = None
        self.sent_at = 0.0
        self._waiting: State | None = None
        self._spare: State | None = None

    @property
    def spare(self) -> State | None:
        """Arrays beside the state, of one that was dropped or replaced."""
        return self._spare

    @property
    def current(self) -> Codec:
        """The codec with its share of the model's budget, or what delivers what it has not sent."""
        if self.flushing:
            return Flush(self.codec)
        return self.codec if self.budget is None else self.codec.with_budget(self.budget)

    @property
    def newest(self) -> State:
        """The state that waits, else the one in effect."""
        return self.state if self._waiting is None else self._waiting

    @property
    def state_nbytes(self) -> int:
        """Bytes of the state, of one that waits and of a spare one; what they share counts once."""
        return sum(_STATE_ITEM * math.prod(array.shape) for array in self.arrays)

    @property
    def arrays(self) -> list[Array]:
        """The arrays of all these states, each once."""
        held = [self.state, self._waiting or {}, self._spare or {}]
        return list({id(array): array for state in held for array in state.values()}.values())

    @property
    def flush_mark(self) -> str | None:
        """For a saved state: whether what is unsent is due to be delivered, or was in the last step."""
        if not self.flushing:
            return None
        return "done" if self.delivered is not None and self.state is self.delivered else "due"

    def change(self, codec: Codec, state: State) -> None:
        """Go on with another codec."""
        self.codec, self.state, self.budget = codec, state, None
        self._waiting = self._spare = None

    def hold(self, state: State) -> None:
        """Keep a new state waiting for `settle`."""
        if state is not self.state:
            self._waiting, self._spare = state, None

    def settle(self, accepted: bool) -> None:
        """Take up the state that waits, or drop it."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._spare = self.state if accepted else waiting
            self.state = waiting if accepted else self.state
