"""The object that goes into ``hvd.DistributedOptimizer(..., compression=...)``."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import torch
from horovod.torch.compression import Compressor as HorovodCompressor

from hvd_compress.codec import CompressionError
from hvd_compress.codecs.none import Dense
from hvd_compress.exchange import Pending, receive, send, spec_of
from hvd_compress.generator import Site
from hvd_compress.ops import Kernels, ops_for
from hvd_compress.policy import BySize
from hvd_compress.session import Session, Slot
from hvd_compress.stats import Counts, Stats
from hvd_compress.torch.advice import Advice, refuse_momentum_twice
from hvd_compress.torch.caller import Caller, find_caller, find_optimizer
from hvd_compress.torch.collective import HorovodCollective
from hvd_compress.torch.naming import Group, Names

__all__ = ["Compressor"]


class _Context(NamedTuple):
    """What `decompress` needs of `compress`."""

    pending: Pending
    session: Session
    slot: Slot
    collective: HorovodCollective
    into: torch.Tensor | None


class Compressor(HorovodCompressor):  # type: ignore[misc]
    """Compresses the gradients of one or more of Horovod's optimizers; one instance on each rank.

    Parameters
    ----------
    policy : BySize
        From :func:`hvd_compress.compose`.
    named_parameters : iterable of (str, torch.Tensor), optional
        Names for the state. By default those that Horovod's optimizer was given.
    grad_scaler : torch.amp.GradScaler, optional
        Pass it when one is used: a step that it skips then leaves every residual as it was, and residuals follow the
        loss scale. Takes twice the memory for state.
    """

    def __init__(
        self,
        policy: BySize,
        *,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        grad_scaler: Any = None,
    ) -> None:
        self.policy = policy
        self._names = Names(named_parameters)
        self._grad_scaler = grad_scaler
        self._sessions: dict[Group, Session] = {}
        self._loaded: dict[str, Any] = {}
        self._stats = Stats()
        self._idle_since = 0.0
        self._advice = Advice()

    def __repr__(self) -> str:
        return f"Compressor({self.policy!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles start afresh: state, and named_parameters, belong to one rank's training run."""
        if self._grad_scaler is not None:
            raise TypeError("a compressor with grad_scaler cannot be copied: the copy would not know the scaler")
        return Compressor, (self.policy,)

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Encode a gradient and start its exchange; called by Horovod.

        Parameters
        ----------
        tensor : torch.Tensor
            The gradient. Integers and booleans pass through.

        Returns
        -------
        tensor : torch.Tensor
            What Horovod is to reduce.
        context
            For `decompress`.

        Raises
        ------
        TypeError
            If the gradient is complex.
        ValueError
            If Horovod is not calling, the operation has no name, or its reduction cannot be compressed.
        CompressionError
            If the gradient does not fit what is known of its tensor.
        """
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            return tensor, None
        start = perf_counter()
        caller = find_caller(tensor)
        group, name = self._names.locate(tensor, caller)
        if group not in self._sessions:
            refuse_momentum_twice(self.policy.codec, caller.optimizer)
        session, key = self._session(group), group.prefix + name
        if session.sending(key):
            self._stats.begin_step()
        with torch.no_grad(), _explained(key, tensor.shape, tensor.dtype):
            reduced, context, slot = self._send(tensor.detach(), key, session, caller)
        self._idle_since = perf_counter()
        sent = context.collective.sent_bytes + reduced.numel() * reduced.element_size()
        counts = Counts(slot.spec.nbytes, sent, encode_seconds=self._idle_since - start)
        self._stats.add(key, counts, not isinstance(slot.codec, Dense))
        return reduced, context

    def _send(
        self, tensor: torch.Tensor, key: str, session: Session, caller: Caller
    ) -> tuple[torch.Tensor, _Context, Slot]:
        ops, process_set = ops_for(tensor), caller.process_set
        collective = HorovodCollective(process_set)
        site = Site(key, session.step, process_set.rank(), process_set.size())
        spec = spec_of(ops, tensor)
        codec = self.policy.for_tensor(key, spec)
        self._advice.on(codec, spec, key, site.world_size)
        slot = session.slot(key, codec, spec, ops)
        reduced, pending, state = send(slot.current, ops, tensor, slot.state, site, collective, slot.room)
        session.update(slot, state)
        session.count(key, pending.magnitudes)
        # hvd.allreduce must leave its input alone; an optimizer takes the result over in place of the gradient.
        into = tensor if caller.optimizer is not None and spec.dtype == "float32" else None
        return reduced, _Context(pending, session, slot, collective, into), slot

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Finish the exchange of a gradient; called by Horovod.

        Parameters
        ----------
        tensor : torch.Tensor
            What Horovod made of the tensor that `compress` returned.
        ctx
            From `compress`; None for a tensor that did not pass through it (sparse gradients).

        Returns
        -------
        torch.Tensor
            The combined gradient; not finite on every rank if it was not on one.

        Raises
        ------
        CompressionError
            If a payload was damaged or the ranks are out of step.
        """
        if ctx is None:
            self._watch(tensor)
            return tensor
        start = perf_counter()
        pending, session, slot, collective, into = ctx
        with torch.no_grad(), _explained(pending.site.name, pending.spec.shape, f"torch.{pending.spec.dtype}"):
            result: torch.Tensor
            self._share(session, ops_for(tensor), collective)
            result, state = receive(ops_for(tensor), tensor, pending, slot.newest, collective, into)
            session.update(slot, state)
            session.received(session.commits_late and not bool(torch.isfinite(result).all()))
        end = perf_counter()
        waited = collective.wait_seconds
        counts = Counts(
            wait_seconds=start - self._idle_since + waited,
            decode_seconds=end - start - waited,
        )
        self._stats.add(pending.site.name, counts, not isinstance(slot.codec, Dense))
        self._idle_since = end
        return result

    def _share(self, session: Session, ops: Kernels, collective: HorovodCollective) -> None:
        before = collective.sent_bytes
        key = session.start_sharing(ops, collective)
        if key is not None:
            self._stats.add(key, Counts(sent_bytes=collective.sent_bytes - before), compressed=True)

    def _watch(self, tensor: torch.Tensor) -> None:
        """Notice an overflow in a gradient that is not compressed: the loss scaler skips the step for it, too."""
        group = None if self._grad_scaler is None else self._names.group_of(find_optimizer())
        if group in self._sessions:
            values = tensor.coalesce().values() if tensor.is_sparse else tensor
            self._sessions[group].received(not bool(torch.isfinite(values).all()))

    def _session(self, group: Group) -> Session:
        if group not in self._sessions:
            scaler = self._grad_scaler
            self._sessions[group] = Session(None if scaler is None else scaler.get_scale)
            self._load(group)
        return self._sessions[group]

    def _load(self, group: Group) -> None:
        own = {key: value for key, value in self._loaded.items() if key in group.keys}
        self._sessions[group].load_state_dict(own)

    def stats(self) -> Stats:
        """Return what was sent and how long it took on this rank: a snapshot."""
        return copy.deepcopy(self._stats)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's residuals and step numbers, by tensor name.

        Call it between steps. Every rank has its own: save one for each.
        """
        tensors = dict(self._loaded)
        for session in self._sessions.values():
            tensors.update(session.state_dict(torch.clone))
        return {"tensors": tensors}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned on this rank.

        Raises
        ------
        ValueError
            If it is no such dictionary. A state that does not fit its tensor is reported when the tensor is first used.
        """
        if not isinstance(state_dict, Mapping) or "tensors" not in state_dict:
            raise ValueError(f"state_dict must come from a compressor's state_dict(), got {type(state_dict).__name__}")
        self._loaded = dict(state_dict["tensors"])
        for group in self._sessions:
            self._load(group)


class _explained:
    """Context that adds the tensor's name, shape and dtype to a ``ValueError``, once, at the edge."""

    def __init__(self, key: str, shape: tuple[int, ...], dtype: Any) -> None:
        self._what = f"{key} {tuple(shape)} {dtype}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, ValueError | TypeError):
            raise CompressionError(f"{self._what}: {error}") from error
