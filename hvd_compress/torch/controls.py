"""What users call between steps: changes, statistics, saved state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import horovod.torch as hvd

from hvd_compress.policy import Policy
from hvd_compress.rules import policy_of
from hvd_compress.stats import Stats
from hvd_compress.torch.saving import tensors_for
from hvd_compress.torch.sessions import Sessions
from hvd_compress.worker import Worker

__all__ = ["Controls", "Progress"]


class Progress(NamedTuple):
    """How far a compressor has come: `tensors` as in its saved state, `steps` as `Sessions.steps`."""

    policy: Policy
    steps: Mapping[str, int]
    tensors: Mapping[str, Any]


class Controls:
    """A policy, what one rank keeps under it, and how both are changed.

    Parameters
    ----------
    policy : Policy
    grad_scaler : torch.amp.GradScaler, optional
    """

    def __init__(self, policy: Policy, grad_scaler: Any) -> None:
        self.policy = policy
        self._worker = Worker(policy)
        self._sessions = Sessions(grad_scaler)

    def reconfigure(self, config: Mapping[str, Any] | str) -> None:
        """Go over to another codec, or other parameters, from the next step on; every rank must call it, between steps.

        What is unsent goes along. Where the new codec has no place for it, the next step delivers it: it goes densely.

        Parameters
        ----------
        config : str or mapping
            As for ``Compression.from_config``; "none" switches compression off.

        Raises
        ------
        TypeError, ValueError
            As ``Compression.from_config``; if momentum would change hands between codec and optimizer; on every rank if
            the ranks do not ask for the same after the same number of steps.
        """
        policy = policy_of(config)
        if policy.codec.has_momentum != self.policy.codec.has_momentum:
            raise ValueError(
                f"reconfigure: {policy.codec!r} and {self.policy.codec!r} must both apply momentum or both leave it to "
                "the optimizer, which has one setting"
            )
        self._sessions.require_same("reconfigure", compression=policy.config)
        self.policy = self._worker.policy = policy
        self._sessions.follow()

    def flush(self) -> None:
        """Have the next step deliver all that is unsent: it goes densely. Every rank must call it, between steps.

        Before training ends, or before the state is saved for another number of ranks, make one step after it.

        Raises
        ------
        ValueError
            On every rank if the ranks do not all call it after the same number of steps.
        """
        self._sessions.require_same("flush")
        self._sessions.flush()

    def progress(self) -> Progress:
        """Return what elastic training commits: settings as they are now, steps, and a copy of the state."""
        self._sessions.held = True
        return Progress(self.policy, self._sessions.steps(), self._sessions.state())

    def restart(self, progress: Progress) -> None:
        """Go on from that after ranks came or went: they compare their settings anew."""
        self.policy = self._worker.policy = progress.policy
        self._sessions.restart(progress.tensors, progress.steps)

    def stats(self) -> Stats:
        """Return what was sent, how long it took and what the state takes on this rank: a snapshot."""
        return self._worker.snapshot(self._sessions.all())

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's residuals and step numbers, by tensor name.

        Call it between steps. Every rank has its own: save one for each.
        """
        rank, world_size = _place()
        return {"tensors": self._sessions.state(), "rank": rank, "world_size": world_size}

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from what `state_dict` returned on this rank, or from a list of what it returned on all ranks.

        A job of another number of ranks needs the list: its ranks share out what was not sent, so that the average over
        them is what it was.

        Raises
        ------
        ValueError
            If it is no such dictionary or list, or one of another rank. A state that does not fit its tensor is
            reported when the tensor is first used.
        """
        self._sessions.load(tensors_for(state_dict, *_place()))


def _place() -> tuple[int, int]:
    """Rank and number of ranks."""
    return (hvd.rank(), hvd.size()) if hvd.is_initialized() else (0, 1)
