"""The object that goes into ``hvd.DistributedOptimizer(..., compression=...)``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from time import perf_counter
from typing import Any, NamedTuple

import horovod.torch as hvd
import torch
from horovod.torch.compression import Compressor as HorovodCompressor

from hvd_compress.advice import refuse_momentum_twice, say_if_idle
from hvd_compress.exchange import spec_of
from hvd_compress.ops import Kernels, ops_for
from hvd_compress.policy import BySize
from hvd_compress.session import Session, Slot
from hvd_compress.stats import Counts, Stats
from hvd_compress.torch.caller import find_caller, find_optimizer
from hvd_compress.torch.collective import HorovodCollective
from hvd_compress.torch.host import copy_of, host_array, on_host, tensor_of
from hvd_compress.torch.naming import Group, Names
from hvd_compress.worker import Sent, Worker

__all__ = ["Compressor"]


_WITHOUT_GRAPH: dict[bool, Any] = {True: nullcontext, False: torch.no_grad}
"""By whether arrays are NumPy's, which autograd does not follow."""


class _Context(NamedTuple):
    """What `decompress` needs of `compress`."""

    sent: Sent
    session: Session
    collective: HorovodCollective
    into: torch.Tensor | None
    host: bool


class _Plain(NamedTuple):
    """The same of a tensor that goes as it is."""

    slot: Slot
    session: Session
    key: str


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
        self._worker = Worker(policy)
        self._names = Names(named_parameters)
        self._grad_scaler = grad_scaler
        self._sessions: dict[Group, Session] = {}
        self._loaded: dict[str, Any] = {}
        say_if_idle(hvd)

    def __repr__(self) -> str:
        return f"Compressor({self.policy!r})"

    def __hash__(self) -> int:
        """Identity; Horovod's front end for TensorFlow asks for it when it is given the wrong compressor."""
        if sys._getframe(1).f_globals.get("__name__", "").startswith("horovod.tensorflow"):
            raise TypeError(
                f"compression must come from hvd_compress.tensorflow.Compression with horovod.tensorflow, got {self!r}"
            )
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

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
        if group not in self._sessions and caller.optimizer is not None:
            for settings in caller.optimizer.param_groups:
                refuse_momentum_twice(self.policy.codec, settings)
        session, key, gradient = self._session(group), group.prefix + name, tensor.detach()
        if key in session.slots and tensor.is_contiguous():
            slot = self._worker.send_dense(session, key, spec_of(ops_for(tensor), tensor), start)
            if slot is not None:
                return gradient, _Plain(slot, session, key)
        host = on_host(tensor)
        collective = HorovodCollective(caller.process_set, host)
        with _WITHOUT_GRAPH[host]():
            array = host_array(gradient) if host else gradient
            reduced, sent = self._worker.send(session, key, ops_for(array), array, collective, start)
        # hvd.allreduce must leave its input alone; an optimizer takes the result over in place of the gradient.
        into = gradient if caller.optimizer is not None and tensor.dtype == torch.float32 else None
        return tensor_of(reduced), _Context(sent, session, collective, into, host)

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
        if isinstance(ctx, _Plain):
            self._worker.receive_dense(ctx.session, ctx.slot, ctx.key, lambda: bool(torch.isfinite(tensor).all()))
            return tensor
        sent, session, collective, into, host = ctx
        with _WITHOUT_GRAPH[host]():
            array_of = host_array if host else torch.Tensor.detach
            reduced, room = array_of(tensor.detach()), None if into is None else array_of(into)
            ops = ops_for(reduced)
            self._share(session, ops, collective)
            result = tensor_of(self._worker.receive(session, ops, reduced, sent, collective, room))
        # One more tensor around the same memory would keep the last one alive, and that the one before it.
        return into if into is not None and result.data_ptr() == into.data_ptr() else result

    def _share(self, session: Session, ops: Kernels, collective: HorovodCollective) -> None:
        before = collective.sent_bytes
        key = session.sharing.start(ops, collective)
        if key is not None:
            self._worker.stats.add(key, Counts(sent_bytes=collective.sent_bytes - before), compressed=True)

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
        """Return what was sent, how long it took and what the state takes on this rank: a snapshot."""
        return self._worker.snapshot(self._sessions.values())

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's residuals and step numbers, by tensor name.

        Call it between steps. Every rank has its own: save one for each.
        """
        tensors = dict(self._loaded)
        for session in self._sessions.values():
            tensors.update(session.state_dict(copy_of))
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
