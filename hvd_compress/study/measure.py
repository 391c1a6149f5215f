"""Counts what the gradients of a run cost: bytes handed to Horovod, and time by the part of a step."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from hvd_compress.codec import Reduction
from hvd_compress.study.results import StepTime, Traffic
from hvd_compress.study.workers import Workers

# The first steps allocate buffers and fill Horovod's response cache.
WARM_UP_STEPS = 5


class Trained(Protocol):
    """What is trained: a learner of a job, or a trial's model."""

    @property
    def compressions(self) -> Any:
        """The framework's ``Compression``."""

    def parameters(self) -> list[NDArray[Any]]:
        """All trained arrays."""


class Totals(NamedTuple):
    """Running sums over the steps of one worker since its process started."""

    dense_bytes: float = 0
    sent_bytes: float = 0
    compressed_dense_bytes: float = 0
    compressed_sent_bytes: float = 0
    gathered_bytes: float = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    step_seconds: float = 0.0
    exchange_seconds: float = 0.0
    steps: float = 0

    def since(self, earlier: Totals) -> Totals:
        """What has been added since."""
        return Totals(*(now - then for now, then in zip(self, earlier, strict=True)))


def _counted(compression: Any) -> Totals:
    stats = compression.stats()
    gathers = compression.policy.codec.reduction is Reduction.GATHER
    return Totals(
        stats.total.dense_bytes,
        stats.total.sent_bytes,
        stats.compressed.dense_bytes,
        stats.compressed.sent_bytes,
        stats.compressed.sent_bytes if gathers else 0,
        stats.total.encode_seconds,
        stats.total.decode_seconds,
    )


def _horovods_own(compression: Any, trained: Trained, workers: Workers) -> Totals:
    """Bytes of one step under Horovod's ``none`` and ``fp16``, which do not count: every parameter is sent."""
    if not workers.exchanging:
        return Totals()
    dense = sum(array.nbytes for array in trained.parameters())
    if compression is not trained.compressions.fp16:
        return Totals(dense, dense)
    half = sum(2 * array.size for array in trained.parameters())
    return Totals(dense, half, dense, half)


class Meter:
    """Adds up the steps of a run under any compressor that Horovod accepts."""

    def __init__(self, compression: Any, trained: Trained, workers: Workers) -> None:
        self._compression = compression
        self._own_step = _horovods_own(compression, trained, workers)
        self._warm = Totals()
        self._steps, self._step_seconds, self._exchange_seconds = 0, 0.0, 0.0

    def add_step(self, step_seconds: float, exchange_seconds: float) -> None:
        """Another step is done, in so many seconds altogether and with nothing but combining gradients."""
        self._steps += 1
        self._step_seconds += step_seconds
        self._exchange_seconds += exchange_seconds
        if self._steps == WARM_UP_STEPS:
            self._warm = self.totals()

    def totals(self) -> Totals:
        """Sums over all steps so far."""
        if hasattr(self._compression, "stats"):
            counted = _counted(self._compression)
        else:
            counted = Totals(*(value * self._steps for value in self._own_step))
        return counted._replace(
            step_seconds=self._step_seconds, exchange_seconds=self._exchange_seconds, steps=self._steps
        )

    def means(self) -> tuple[Traffic, StepTime]:
        """Bytes and milliseconds of a step, the first few left out where there are more."""
        totals = self.totals()
        warm = totals.since(self._warm) if self._steps > WARM_UP_STEPS else totals
        steps = max(1, warm.steps)
        encode, decode = warm.encode_seconds / steps, warm.decode_seconds / steps
        wait = warm.exchange_seconds / steps - decode
        traffic = Traffic(*(round(value / steps) for value in warm[:5]))
        return traffic, StepTime(*(1e3 * seconds for seconds in (warm.step_seconds / steps, encode, wait, decode)))
