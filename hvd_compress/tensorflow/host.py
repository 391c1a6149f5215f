"""The part of a TensorFlow compressor that runs with the graph: Python functions of arrays, and the state they keep."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from hvd_compress.codec import Array, Codec
from hvd_compress.ops import ops_for
from hvd_compress.policy import BySize
from hvd_compress.relay import start_second
from hvd_compress.session import Session
from hvd_compress.stats import Stats
from hvd_compress.tensorflow.collective import GraphCollective
from hvd_compress.tensorflow.keys import Place
from hvd_compress.worker import Sent, Worker

__all__ = ["Host"]

_MOST_WAITING = 16
"""Exchanges of one tensor whose results may be outstanding: a graph leaves out a result that nothing needs."""


class Host:
    """Encodes and decodes gradients, one model's and those of calls by name.

    Parameters
    ----------
    policy : BySize
        From :func:`hvd_compress.compose`.
    """

    def __init__(self, policy: BySize) -> None:
        self.worker = Worker(policy)
        self.commits_late = False
        self._sessions: dict[str, Session] = {}
        self._sent: dict[tuple[str, int], dict[int, tuple[Sent, GraphCollective]]] = {}
        self._loaded: dict[str, Any] = {}
        self._scale = 1.0

    def encode(
        self, place: Place, process_set: Any, gradient: Array, scale: Array, dtype: str
    ) -> tuple[Array, Array, Array, Array]:
        """Encode a gradient.

        Returns
        -------
        reduced : array
            What the allreduce is to reduce, as `dtype`.
        row : array
            What is to be gathered, or summed first; empty for what is only reduced.
        magnitudes : array
            What is to be added up over the ranks; empty in most steps.
        number : array
            For `decode`, so that each finds its own even if a later step is sent first.
        """
        start, ops, collective = perf_counter(), ops_for(gradient), GraphCollective(process_set)
        self._scale = float(scale)
        session = self._session(place.key)
        self.worker.begin(session, place.key)
        reduced, sent = self.worker.send(session, place.key, ops, gradient, collective, start, place.name)
        # A graph starts each second phase when the first one has ended.
        self.worker.under_way.clear()
        waiting = self._sent.setdefault((place.key, place.turn), {})
        waiting[session.steps] = sent, collective
        if len(waiting) > _MOST_WAITING:
            del waiting[min(waiting)]
        magnitudes = sent.pending.magnitudes
        return (
            ops.cast(ops.flatten(reduced), dtype),
            ops.zeros(0, "uint8") if collective.buffer is None else collective.buffer,
            ops.zeros(0, "int64") if magnitudes is None else magnitudes,
            ops.constant((session.steps,), "int64"),
        )

    def advance(self, place: Place, first: Array, number: Array) -> Array:
        """Return what is summed second, made of what came of the first sum."""
        sent, collective = self._sent[place.key, place.turn][int(number[0])]
        collective.arrived = first
        counts = start_second(place.key, sent.pending.handle, collective)
        self.worker.stats.add(place.key, counts, compressed=True)
        return collective.buffer

    def decode(self, place: Place, reduced: Array, gathered: Array, totals: Array, number: Array) -> Array:
        """Decode what came of the first three arrays that `encode` returned, or of what `advance` did of the second."""
        sent, collective = self._sent[place.key, place.turn].pop(int(number[0]))
        session = self._session(place.key)
        if totals.shape[0]:
            session.sharing.count_total(place.key, np.asarray(totals), collective.world_size)
        collective.arrived = gathered
        return self.worker.receive(session, ops_for(reduced), reduced, sent, collective)

    def check_loaded(self, codec: Codec, place: Place) -> None:
        """Raise ``ValueError`` that names the variable if its saved state is for another shape or codec."""
        try:
            self._session(place.key).check_loaded(place.key, codec, place.spec)
        except ValueError as error:
            raise ValueError(f"{place.title}: {error}") from error

    def stats(self) -> Stats:
        """Return what was sent, how long it took and what the states take: a snapshot."""
        return self.worker.snapshot(self._sessions.values())

    def state(self) -> dict[str, Any]:
        """Return a copy of the state of every tensor."""
        tensors = dict(self._loaded)
        for session in self._sessions.values():
            tensors.update(session.state_dict(np.array))
        return tensors

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._loaded = dict(tensors)
        for name in self._sessions:
            self._load(name)

    def _session(self, key: str) -> Session:
        name = _session_of(key)
        if name not in self._sessions:
            self._sessions[name] = Session((lambda: self._scale) if self.commits_late else None, overlapping=True)
            self._load(name)
        return self._sessions[name]

    def _load(self, name: str) -> None:
        own = {key: value for key, value in self._loaded.items() if _session_of(key) == name}
        self._sessions[name].load_state_dict(own)


def _session_of(key: str) -> str:
    """Calls by name make steps of their own, variables make them together."""
    return key if key.startswith("call/") else ""
