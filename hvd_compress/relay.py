"""Exchanges of two phases: what is summed in the second one depends on the sum of the first.

Ranks finish tensors in different orders. One that waited for a tensor's second sum before it had started those of the
others would wait for a rank that does the same with another tensor, for ever. So the second phase of all tensors that
are under way is started before any is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from hvd_compress.codec import Array, Codec, Reduction
from hvd_compress.collective import Collective, CountingCollective
from hvd_compress.errors import explained
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import NONFINITE, Payload, TensorSpec
from hvd_compress.stats import Counts

__all__ = ["Relay", "UnderWay", "alone", "poisoned", "start_second"]


class Relay:
    """One tensor's exchange of two phases; the first one is started here.

    Parameters
    ----------
    codec : Codec
    ops : ArrayOps
    payload : Payload
        From `codec.encode`.
    spec : TensorSpec
    site : Site
    collective : Collective
        Sums both phases.
    """

    def __init__(
        self, codec: Codec, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site, collective: Collective
    ) -> None:
        self._codec, self._ops, self._payload = codec, ops, payload
        self.spec, self._site, self._collective = spec, site, collective
        self._first = collective.allreduce(payload.parts[0], f"{site.name}.first")
        self._second: Any = None

    @property
    def source(self) -> Array:
        """What `codec.encode` compressed on this rank."""
        return self._payload.source

    def advance(self) -> None:
        """Start the second phase, once the first sum is known, unless that was done."""
        if self._second is not None:
            return
        ops, flag = self._ops, self._payload.flag
        with ops.quiet():
            self._payload = self._payload._replace(parts=(self._collective.wait(self._first),))
            second = self._codec.encode_second(ops, self._payload, self.spec, self._site)
            # The first sum may be of integers, and need not show what was not finite.
            second = poisoned(ops, second, flag)
        self._second = self._collective.allreduce(second, f"{self._site.name}.second")

    def finish(self) -> Payload:
        """Return the payload with both sums."""
        self.advance()
        return self._payload._replace(parts=(*self._payload.parts, self._collective.wait(self._second)))


class UnderWay:
    """One rank's exchanges whose second phase was not started yet, by tensor."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Relay, CountingCollective]] = {}

    def add(self, key: str, relay: Relay, collective: CountingCollective) -> None:
        """Note one that has begun."""
        self._waiting[key] = relay, collective

    def clear(self) -> None:
        """Forget all, as after ranks came or went."""
        self._waiting.clear()

    def advance(self, idle_since: float) -> Iterator[tuple[str, Counts]]:
        """Start the second phase of all; yield what each one sent and took, waiting since `idle_since` included."""
        while self._waiting:
            key = next(iter(self._waiting))
            start = perf_counter()
            counts = start_second(key, *self._waiting.pop(key))
            counts.wait_seconds += start - idle_since
            idle_since = perf_counter()
            yield key, counts

    @property
    def sources(self) -> list[Array]:
        """What their second payloads will be made of."""
        return [relay.source for relay, _ in self._waiting.values()]


def start_second(key: str, relay: Relay, collective: CountingCollective) -> Counts:
    """Start the second phase of a tensor's exchange; return what it sent and took.

    Raises
    ------
    CompressionError
        If what came of the first phase was damaged.
    """
    start, sent, waited = perf_counter(), collective.sent_bytes, collective.wait_seconds
    try:
        relay.advance()
    except (ValueError, TypeError) as error:
        raise explained(error, key, relay.spec.shape, relay.spec.dtype) from error
    waited = collective.wait_seconds - waited
    seconds = perf_counter() - start - waited
    return Counts(sent_bytes=collective.sent_bytes - sent, wait_seconds=waited, encode_seconds=seconds)


def alone(codec: Codec, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Payload:
    """A payload from `codec.encode` with all its parts, as on the only rank of a job."""
    if codec.reduction is not Reduction.TWO_PHASE:
        return payload
    return payload._replace(parts=(*payload.parts, codec.encode_second(ops, payload, spec, site)))


def poisoned(ops: Kernels, values: Array, flag: Array | None) -> Array:
    """An array to be summed, made NaN where the flag says that the input was not finite: it may not show otherwise."""
    if flag is None or ops.shape(values)[0] == 0:
        return values
    first = ops.cast(ops.where(ops.equal(flag, NONFINITE), float("nan"), values[:1]), ops.dtype(values))
    return ops.put(values, ops.arange(1), first)
