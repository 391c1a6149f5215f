"""The groups of tensors that one compressor is used for, and what this rank keeps for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import horovod.torch as hvd
import numpy as np

from hvd_compress.advice import refuse_momentum_twice
from hvd_compress.agreement import agree
from hvd_compress.ops import ops_for
from hvd_compress.policy import Policy
from hvd_compress.session import Session
from hvd_compress.torch.caller import Caller
from hvd_compress.torch.collective import HorovodCollective
from hvd_compress.torch.gate import Gate
from hvd_compress.torch.host import copy_of
from hvd_compress.torch.naming import Group

__all__ = ["Sessions"]


class GatedSession(Session):
    """A session with the gate that its tensors pass."""

    def __init__(self, group: Group, process_set: Any, loss_scale: Callable[[], float] | None) -> None:
        super().__init__(loss_scale, prefix=group.prefix)
        # Calls by name are groups of one.
        self.gate = Gate(process_set, f"hvd_compress.{min(group.keys)}.")


class Sessions:
    """A session for each group, whose ranks compare their settings before it begins.

    Parameters
    ----------
    grad_scaler : torch.amp.GradScaler, optional

    Attributes
    ----------
    held : bool
        Whether the state of an elastic job holds them.
    """

    def __init__(self, grad_scaler: Any) -> None:
        self._scaler = grad_scaler
        self.held = False
        self._sessions: dict[Group, GatedSession] = {}
        self._loaded: dict[str, Any] = {}
        self._steps: dict[str, int] = {}
        self._agreed: set[str] = set()
        self._flushes_loaded = False
        self._follows = False

    def all(self) -> list[GatedSession]:
        """All that there are."""
        return list(self._sessions.values())

    def get(self, group: Group | None) -> GatedSession | None:
        """The session of a group, if it has begun."""
        return None if group is None else self._sessions.get(group)

    def begin(self, group: Group, caller: Caller, policy: Policy) -> GatedSession:
        """Make a group's session.

        Raises
        ------
        ValueError
            If the optimizer's settings do not go with the codecs, or on every rank if the ranks' settings differ, or
            an elastic job's state does not hold the compressor.
        """
        if os.environ.get("HOROVOD_ELASTIC") == "1" and caller.process_set.size() > 1 and not self.held:
            raise ValueError(
                "in an elastic job the compressor must be part of the state: hvd.elastic.TorchState(..., "
                "compression=compression); new workers would wait for ever"
            )
        tensors: list[Any] = []
        if caller.optimizer is not None:
            for settings in caller.optimizer.param_groups:
                refuse_momentum_twice(policy.codec, settings)
            tensors = [[name, list(p.shape), str(p.dtype)] for p, name in group.names.items()]
        # Calls by name are many.
        what = f"{group.prefix}hvd_compress"
        if what not in self._agreed:
            settings = {"compression": policy.config, "grad_scaler": self._scaler is not None, "tensors": tensors}
            _agree(caller.process_set, settings, what)
            self._agreed.add(what)
        session = GatedSession(group, caller.process_set, None if self._scaler is None else self._scaler.get_scale)
        self._sessions[group] = session
        self._load(group)
        if self._flushes_loaded:
            session.flush()
        return session

    def require_same(self, what: str, **settings: Any) -> None:
        """Raise ``ValueError`` on every rank unless all ask for the same after the same numbers of steps."""
        _agree(hvd.global_process_set, {"steps": sorted(self.steps().items()), **settings}, f"hvd_compress.{what}")

    def steps(self) -> dict[str, int]:
        """Steps that each group has made, by the first of its tensors' keys."""
        # After a restart no session has begun.
        return {**self._steps, **{min(group.keys): session.steps for group, session in self._sessions.items()}}

    def flush(self) -> None:
        """Have each tensor's next exchange deliver what is unsent."""
        self._flushes_loaded = bool(self._loaded)
        for session in self._sessions.values():
            session.flush()

    def state(self) -> dict[str, Any]:
        """Return a copy of the state of every tensor."""
        tensors = dict(self._loaded)
        for session in self._sessions.values():
            tensors.update(session.state_dict(copy_of))
        return tensors

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._loaded, self._steps, self._flushes_loaded, self._follows = dict(tensors), {}, False, False
        for group in self._sessions:
            self._load(group)

    def restart(self, tensors: Mapping[str, Any], steps: Mapping[str, int]) -> None:
        """Go on from `state` after ranks came or went: settings are compared anew, steps counted on from `steps`."""
        # What has begun on some ranks only must begin on all.
        self._sessions.clear()
        self._agreed.clear()
        self.load(tensors)
        self._steps, self._follows = dict(steps), True

    def follow(self) -> None:
        """Let state that was loaded be of a codec that is left."""
        self._follows = True
        for session in self._sessions.values():
            session.follows = True

    def _load(self, group: Group) -> None:
        own = {key: self._loaded.pop(key) for key in group.keys & self._loaded.keys()}
        session = self._sessions[group]
        session.load_state_dict(own)
        session.follows = self._follows
        session.steps = self._steps.get(min(group.keys), session.steps)


def _agree(process_set: Any, settings: Mapping[str, Any], what: str) -> None:
    gate = Gate(process_set, f"{what}.")
    agree(ops_for(np.zeros(0)), HorovodCollective(process_set, True, gate, 0), settings, what)
