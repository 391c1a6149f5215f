"""What one rank does with a gradient, whatever the framework: choose its codec, keep its state, count its bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from hvd_compress.advice import Advice, refuse_loss_scaler
from hvd_compress.change import follow
from hvd_compress.codec import Array, State
from hvd_compress.codecs.none import Dense
from hvd_compress.collective import CountingCollective
from hvd_compress.errors import explained
from hvd_compress.exchange import Pending, receive, send, spec_of
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import TensorSpec
from hvd_compress.policy import Policy
from hvd_compress.registry import codec_from_config
from hvd_compress.relay import Relay, UnderWay
from hvd_compress.session import Session
from hvd_compress.slot import Slot
from hvd_compress.stats import Counts, Stats
from hvd_compress.timeline import Timeline

__all__ = ["Sent", "Worker"]

_ONE_NBYTES = 4
"""Bytes of what is reduced beside a gathered row."""


class Sent(NamedTuple):
    """What stays on this rank between `Worker.send` and `Worker.receive`."""

    pending: Pending
    slot: Slot


class Worker:
    """Sends and receives the gradients of one or more sessions.

    Parameters
    ----------
    policy : Policy

    Attributes
    ----------
    stats : Stats
    beside : dict
        Tensor name -> what every step sends of tensors that do not pass through here.
    under_way : UnderWay
        Exchanges whose second phase was not started yet.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.stats = Stats()
        self.beside: dict[str, Counts] = {}
        self.under_way = UnderWay()
        self._advice = Advice()
        self._idle_since = 0.0
        self._timeline: Timeline | None = None

    def begin(self, session: Session, key: str) -> None:
        """Note that a tensor is about to be sent, which may begin a step."""
        if session.sending(key):
            session.policy = self.policy.at_step(session.step)
            self.stats.begin_step()
            if self._timeline is not None:
                self._timeline.flush()
            for name, counts in self.beside.items():
                self.stats.add(name, counts, compressed=False)

    def send(
        self,
        session: Session,
        key: str,
        ops: Kernels,
        gradient: Array,
        collective: CountingCollective,
        start: float,
        name: str | None = None,
    ) -> tuple[Array, Sent]:
        """Encode a gradient and start its exchange, in work that began at `start`; `begin` comes before.

        Parameters
        ----------
        name : str, optional
            What rules know the tensor by; its key without what the session puts before it.

        Returns
        -------
        array
            What a stock allreduce must reduce.
        sent : Sent
            For `receive`.

        Raises
        ------
        CompressionError
            If the gradient does not fit what is known of its tensor; the message names it.
        """
        try:
            spec = spec_of(ops, gradient)
            slot = self._slot(session, key, spec, ops, collective, name or key.removeprefix(session.prefix))
            site = Site(key, session.step, collective.rank, collective.world_size)
            room = session.room(slot)
            reduced, pending, state = send(slot.current, ops, gradient, slot.state, site, collective, room)
            self._keep(session, slot, state, slot.flushing)
            session.sharing.count(key, pending.magnitudes)
            if isinstance(pending.handle, Relay):
                self.under_way.add(key, pending.handle, collective)
        except (ValueError, TypeError) as error:
            raise explained(error, key, ops.shape(gradient), ops.dtype(gradient)) from error
        self._idle_since = perf_counter()
        nbytes = collective.sent_bytes + (_ONE_NBYTES if pending.handle is not None else spec_of(ops, reduced).nbytes)
        seconds = self._idle_since - start
        self._mark(key, "encode", start, self._idle_since)
        slot.sent_at = self._idle_since
        entries = pending.entries if isinstance(pending.entries, int) else 0
        self._count(key, slot, Counts(spec.nbytes, nbytes, entries, encode_seconds=seconds))
        return reduced, Sent(pending, slot)

    def send_dense(self, session: Session, key: str, spec: TensorSpec, start: float) -> Slot | None:
        """`send`, in short, of a tensor that is known to go as it is; None if it must pass through `send`."""
        slot = session.slots.get(key)
        # A subclass may keep state.
        if slot is None or type(slot.codec) is not Dense or slot.policy is not session.policy or slot.spec != spec:
            return None
        if spec.dtype == "bfloat16":
            return None
        nbytes, self._idle_since = spec.nbytes, perf_counter()
        self.stats.add(key, Counts(nbytes, nbytes, spec.numel, self._idle_since - start), compressed=False)
        slot.sent_at = self._idle_since
        return slot

    def receive_dense(self, session: Session, slot: Slot, key: str, is_finite: Callable[[], bool]) -> None:
        """`receive`, in short, of a tensor for which `send_dense` returned its slot."""
        now = perf_counter()
        session.received(session.commits_late and not is_finite())
        self.stats.add(key, Counts(wait_seconds=now - self._idle_since), compressed=False)
        self._mark(key, "exchange", slot.sent_at, now)
        self._idle_since = perf_counter()

    def receive(
        self,
        session: Session,
        ops: Kernels,
        reduced: Array,
        sent: Sent,
        collective: CountingCollective,
        into: Array | None = None,
    ) -> Array:
        """Finish the exchange of a gradient.

        Parameters
        ----------
        reduced : array
            What the allreduce made of the array that `send` returned.
        into : array, optional
            Array of the gradient's size that may be overwritten with the result.

        Returns
        -------
        array
            The combined gradient; not finite on every rank if it was not on one.

        Raises
        ------
        CompressionError
            If a payload was damaged or the ranks are out of step.
        """
        for name, counts in self.under_way.advance(self._idle_since):
            self.stats.add(name, counts, compressed=True)
            self._idle_since = perf_counter()
        start, before, (pending, slot) = perf_counter(), collective.wait_seconds, sent
        key, spec = pending.site.name, pending.spec
        try:
            held = slot.delivered if slot.flushing else None
            result, state = receive(ops, reduced, pending, slot.newest if held is None else held, collective, into)
            self._keep(session, slot, state, held is not None)
            looked_at = session.commits_late or slot.flushing
            finite = not looked_at or bool(ops.all_finite(result))
            session.received(session.commits_late and not finite)
            if slot.flushing:
                self._arrived(session, slot, finite)
        except (ValueError, TypeError) as error:
            raise explained(error, key, spec.shape, spec.dtype) from error
        # What only the device knew it has just said.
        late = 0 if isinstance(pending.entries, int) else ops.integer(pending.entries)
        end, waited = perf_counter(), collective.wait_seconds - before
        idle = start - self._idle_since + waited
        counts = Counts(kept_entries=late, wait_seconds=idle, decode_seconds=end - start - waited)
        self._count(key, slot, counts)
        self._mark(key, "exchange", slot.sent_at, start + waited)
        self._mark(key, "decode", start + waited, end)
        self._idle_since = end
        return result

    def snapshot(self, sessions: Iterable[Session]) -> Stats:
        """Return a copy of the statistics, with what the sessions' states take now."""
        nbytes = sum(session.state_nbytes for session in sessions)
        return replace(copy.deepcopy(self.stats), state_nbytes=nbytes)

    def _slot(
        self, session: Session, key: str, spec: TensorSpec, ops: Kernels, collective: CountingCollective, name: str
    ) -> Slot:
        slot, policy = session.slots.get(key), session.policy or self.policy
        if slot is not None and slot.spec == spec:
            if slot.policy is not policy or slot.flushing:
                follow(slot, policy, name, ops)
            return slot
        self._timeline = Timeline.from_environment(collective.rank)
        codec = policy.for_tensor(name, spec)
        if session.commits_late:
            refuse_loss_scaler(codec)
        self._advice.on(codec, spec, key, collective.rank, collective.world_size)
        # Where codecs follow each other, the saved state may be of the one before.
        saved = session.saved_codec(key, always=policy is not self.policy)
        slot = session.slot(key, codec if saved is None else codec_from_config(saved), spec, ops)
        if saved is None:
            slot.policy = policy
        else:
            follow(slot, policy, name, ops)
        return slot

    def _keep(self, session: Session, slot: Slot, state: State, delivers: bool) -> None:
        """Take up a tensor's new state; that of an exchange which delivers all only if it arrives."""
        if delivers:
            slot.delivered = state
        if not delivers or session.commits_late:
            session.update(slot, state)

    def _arrived(self, session: Session, slot: Slot, finite: bool) -> None:
        """Note whether what was to deliver all has."""
        if not finite:
            slot.delivered = None
        elif slot.delivered is not None and not session.commits_late:
            slot.state = slot.delivered

    def _mark(self, key: str, what: str, start: float, end: float) -> None:
        if self._timeline is not None:
            self._timeline.add(key, what, start, end)

    def _count(self, key: str, slot: Slot, counts: Counts) -> None:
        self.stats.add(key, counts, not isinstance(slot.codec, Dense))
