"""A codec's part in the steps of a training: everything but the network."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from hvd_compress.bench.arrays import Gradients
from hvd_compress.bench.machine import Timing, timed, without_advice
from hvd_compress.codec import Array, Reduction
from hvd_compress.exchange import spec_of
from hvd_compress.policy import BySize, compose_config
from hvd_compress.session import Session
from hvd_compress.worker import Sent, Worker

__all__ = ["WARM_UP_STEPS", "Measured", "measure"]

WARM_UP_STEPS = 20
"""Steps after which a residual is about as large as it stays."""
_FEWEST_STEPS, _PATIENCE = 4, 20
_NAME, _TAG = "weight", 4


class Measured(NamedTuple):
    """What a codec costs.

    Attributes
    ----------
    encode, decode : Timing
        From the gradient to what is handed over, state included; from what came of all ranks to the gradient.
    payload_bytes : int
        Bytes that are handed over.
    warm_up : int
        Steps made before.
    collective : str
        "allgather", or by what is summed "allreduce" or "allreduce_fp16".
    """

    encode: Timing
    decode: Timing
    payload_bytes: int
    warm_up: int
    collective: str


def measure(config: str, gradients: Gradients, workers: int, seconds: float) -> Measured:
    """Compress one tensor step after step as a framework's skin does, and decode what `workers` ranks would send.

    The tensor is a matrix, as close to a square as its entries allow: some codecs compress nothing else.

    Parameters
    ----------
    config : str
        Of a codec; it gets the wrappers that it gets in a training, and is used for tensors of every size.
    seconds : float
        Time for each figure; warming up may take 20 times as long, and ends sooner where that is not enough.
    """
    steps = _Steps(replace(compose_config(config), min_elements=0, min_ndim=0), gradients, workers)
    with without_advice():
        warm_up, limit = 0, perf_counter() + _PATIENCE * seconds
        while warm_up < WARM_UP_STEPS and (warm_up < _FEWEST_STEPS or perf_counter() < limit):
            steps.encode(warm_up)
            warm_up += 1
        encode = timed(steps.encode, seconds, gradients.clock)
        steps.gather()
        steps.decode(0)
        decode = timed(steps.decode, seconds, gradients.clock)
    return Measured(encode, decode, steps.payload_bytes, warm_up, steps.collective)


class _Kept:
    """The collective of a rank that keeps what it would send, and receives what is given to it."""

    rank = 0
    wait_seconds = 0.0

    def __init__(self, workers: int) -> None:
        self.world_size = workers
        self.sent_bytes = 0
        self.rows: deque[Array] = deque(maxlen=workers)
        self.gathered: Array = None
        self.summed: dict[str, Array] = {}

    def allgather(self, buffer: Array, name: str) -> str:
        self.sent_bytes += len(buffer)
        self.rows.append(buffer)
        return name

    def allreduce(self, array: Array, name: str) -> str:
        self.summed[name] = array
        return name

    def wait(self, handle: str) -> Array:
        return self.summed.get(handle, self.gathered)


class _Steps:
    def __init__(self, policy: BySize, gradients: Gradients, workers: int) -> None:
        self._gradients, self._ops, self._workers = gradients, gradients.ops, workers
        # Sums are as long for any number of ranks. Where these take turns, all wait for the one whose turn it is, as a
        # single one always does.
        summed = policy.codec.reduction is Reduction.TWO_PHASE
        self._worker, self._session, self._kept = Worker(policy), Session(), _Kept(1 if summed else workers)
        rows = next(rows for rows in range(math.isqrt(gradients.n), 0, -1) if gradients.n % rows == 0)
        self._shape = rows, gradients.n // rows
        self._reduced: Array = None
        self._sent: Sent | None = None

    def encode(self, i: int) -> None:
        start, gradient = perf_counter(), self._gradients[i].reshape(self._shape)
        self._worker.begin(self._session, _NAME)
        self._reduced, self._sent = self._worker.send(self._session, _NAME, self._ops, gradient, self._kept, start)
        for _ in self._worker.under_way.advance(start):
            pass

    def gather(self) -> None:
        """Let the rows of the last steps stand for those of so many ranks: they only differ in the tag of the step."""
        rows = self._kept.rows
        while rows and len(rows) < self._workers:
            rows.appendleft(rows[0])
        if rows:
            tag = rows[-1][-_TAG:]
            self._kept.gathered = self._ops.concat([part for row in rows for part in (row[:-_TAG], tag)])

    def decode(self, i: int) -> Array:
        assert self._sent is not None
        return self._worker.receive(
            self._session, self._ops, self._reduced, self._sent, self._kept, self._gradients.result.reshape(self._shape)
        )

    @property
    def payload_bytes(self) -> int:
        """Bytes of the last row, or of what is summed instead, in all phases."""
        rows, summed = self._kept.rows, self._kept.summed.values()
        if summed:
            return sum(int(self._ops.shape(self._ops.to_bytes(array))[0]) for array in summed)
        return len(rows[-1]) if rows else spec_of(self._ops, self._reduced).nbytes

    @property
    def collective(self) -> str:
        """What the payload goes through."""
        if self._kept.rows:
            return "allgather"
        return "allreduce_fp16" if self._ops.dtype(self._reduced) == "float16" else "allreduce"
