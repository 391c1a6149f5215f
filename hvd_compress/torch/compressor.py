"""The object that goes into ``hvd.DistributedOptimizer(..., compression=...)``."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from contextlib import nullcontext
from time import perf_counter
from typing import Any, NamedTuple

import horovod.torch as hvd
import torch
from horovod.torch.compression import Compressor as HorovodCompressor

from hvd_compress.advice import say_if_idle
from hvd_compress.exchange import spec_of
from hvd_compress.ops import Kernels, ops_for
from hvd_compress.ops.streams import arrived, used_here
from hvd_compress.policy import Policy
from hvd_compress.session import Session
from hvd_compress.slot import Slot
from hvd_compress.stats import Counts
from hvd_compress.torch.caller import find_caller, find_optimizer
from hvd_compress.torch.collective import HorovodCollective
from hvd_compress.torch.controls import Controls, Progress
from hvd_compress.torch.host import host_array, on_host, tensor_of
from hvd_compress.torch.naming import Group, Names
from hvd_compress.worker import Sent

__all__ = ["Compressor"]


_WITHOUT_GRAPH: dict[bool, Any] = {True: nullcontext, False: torch.no_grad}
"""By whether arrays are NumPy's, which autograd does not follow."""


class _Origin(NamedTuple):
    """Whose gradient it is."""

    group: Group
    key: str
    gradient: weakref.ref[torch.Tensor]


class _Context(NamedTuple):
    """What `decompress` needs of `compress`."""

    origin: _Origin
    sent: Sent
    session: Session
    collective: HorovodCollective
    into: torch.Tensor | None
    host: bool


class _Plain(NamedTuple):
    """The same of a tensor that goes as it is."""

    origin: _Origin
    slot: Slot
    session: Session


class _Again(NamedTuple):
    """What `decompress` needs of a gradient that was combined already."""

    dtype: torch.dtype


class Compressor(Controls, HorovodCompressor):  # type: ignore[misc]
    """Compresses the gradients of one or more of Horovod's optimizers; one instance on each rank.

    Parameters
    ----------
    policy : Policy
        Such as from :func:`hvd_compress.compose`.
    named_parameters : iterable of (str, torch.Tensor), optional
        Names for the state. By default those that Horovod's optimizer was given.
    grad_scaler : torch.amp.GradScaler, optional
        Pass it when one is used: a step that it skips then leaves every residual as it was, and residuals follow the
        loss scale. Takes twice the memory for state.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        grad_scaler: Any = None,
    ) -> None:
        super().__init__(policy, grad_scaler)
        self._names = Names(named_parameters)
        self._grad_scaler = grad_scaler
        self._combined: dict[Group, dict[str, weakref.ref[torch.Tensor]]] = {}
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
        key, gradient = group.prefix + name, tensor.detach()
        session = self._sessions.get(group)
        if caller.in_backward or (session is not None and session.overflow):
            # Horovod's optimizer is not told when a loss scaler skips a step, and thinks that it still has to be made.
            self._combined.pop(group, None)
        elif getattr(caller.optimizer, "_synchronized", False) and self._was_combined(group, key, tensor):
            # MPI and Gloo cannot add bfloat16.
            return gradient.float() if tensor.dtype == torch.bfloat16 else gradient, _Again(tensor.dtype)
        session = session or self._sessions.begin(group, caller, self.policy)
        self._worker.begin(session, key)
        origin = _Origin(group, key, weakref.ref(tensor))
        if key in session.slots and tensor.is_contiguous():
            slot = self._worker.send_dense(session, key, spec_of(ops_for(tensor), tensor), start)
            if slot is not None:
                return gradient, _Plain(origin, slot, session)
        host = on_host(tensor)
        collective = HorovodCollective(caller.process_set, host, session.gate, session.steps)
        if key in session.slots and not host:
            used_here(*session.slots[key].arrays)
        with _WITHOUT_GRAPH[host]():
            array = host_array(gradient) if host else gradient
            reduced, sent = self._worker.send(session, key, ops_for(array), array, collective, start)
        # hvd.allreduce must leave its input alone; an optimizer takes the result over in place of the gradient.
        into = gradient if caller.optimizer is not None and tensor.dtype == torch.float32 else None
        return tensor_of(reduced), _Context(origin, sent, session, collective, into, host)

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
        if isinstance(ctx, _Again):
            return tensor.to(ctx.dtype)
        if isinstance(ctx, _Plain):
            key = ctx.origin.key
            self._worker.receive_dense(ctx.session, ctx.slot, key, lambda: bool(torch.isfinite(tensor).all()))
            self._note_combined(ctx.origin)
            return tensor
        origin, sent, session, collective, into, host = ctx
        arrived(tensor)
        if not host:
            used_here(*sent.slot.arrays, *self._worker.under_way.sources)
        with _WITHOUT_GRAPH[host]():
            array_of = host_array if host else torch.Tensor.detach
            reduced, room = array_of(tensor.detach()), None if into is None else array_of(into)
            ops = ops_for(reduced)
            self._share(session, ops, collective)
            result = tensor_of(self._worker.receive(session, ops, reduced, sent, collective, room))
        self._note_combined(origin)
        # One more tensor around the same memory would keep the last one alive, and that the one before it.
        return into if into is not None and result.data_ptr() == into.data_ptr() else result

    def _was_combined(self, group: Group, key: str, gradient: torch.Tensor) -> bool:
        """Whether that is what the last exchange left: another gradient may have its place in memory by now."""
        combined = self._combined.get(group, {}).get(key)
        return combined is not None and combined() is gradient

    def _note_combined(self, origin: _Origin) -> None:
        # Horovod puts the result into the tensor that it gave.
        self._combined.setdefault(origin.group, {})[origin.key] = origin.gradient

    def _share(self, session: Session, ops: Kernels, collective: HorovodCollective) -> None:
        before = collective.sent_bytes
        key = session.sharing.start(ops, collective)
        if key is not None:
            self._worker.stats.add(key, Counts(sent_bytes=collective.sent_bytes - before), compressed=True)

    def _watch(self, tensor: torch.Tensor) -> None:
        """Notice an overflow in a gradient that is not compressed: the loss scaler skips the step for it, too."""
        session = None
        if self._grad_scaler is not None:
            session = self._sessions.get(self._names.group_of(find_optimizer()))
        if session is not None:
            values = tensor.coalesce().values() if tensor.is_sparse else tensor
            session.received(not bool(torch.isfinite(values).all()))

    def restart(self, progress: Progress) -> None:
        """Go on from that after ranks came or went: they compare their settings anew."""
        self._combined.clear()
        self._worker.under_way.clear()
        super().restart(progress)
