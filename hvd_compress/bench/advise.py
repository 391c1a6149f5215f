"""Which codecs would make a training step faster: measured link, measured encoding and decoding, and the user's step.

The JSON object has ``workers``, ``tensors`` (their numbers of entries), ``compute_ms``, ``link`` (``measured``, and
``latency_ms`` and ``bytes_per_second`` of one rank's buffer for each of ``allreduce``, ``allreduce_fp16`` and
``allgather``) and ``codecs``, whose first is dense: ``codec``, ``payload_bytes``, ``encode_ms``, ``wire_ms``,
``decode_ms``, ``exchange_ms``, ``step_ms`` (no overlap), ``step_overlapped_ms`` (full overlap) and ``verdict``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from hvd_compress.bench.arrays import Gradients
from hvd_compress.bench.estimate import Cost, Estimate, dense_cost, estimate
from hvd_compress.bench.link import Link
from hvd_compress.bench.machine import Timing, find_torch, timed
from hvd_compress.bench.training import measure
from hvd_compress.study.workers import Workers

__all__ = ["Advice", "advise", "job_size"]

_MEASURED_WORKERS = 8
"""The most ranks whose payloads are really decoded; beyond, time goes on in a straight line."""


class Advice(NamedTuple):
    """What is known about a job, and what follows."""

    workers: int
    sizes: Sequence[int]
    compute: float
    link: Link
    measured: bool
    estimates: list[Estimate]

    def facts(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "workers": self.workers,
            "tensors": list(self.sizes),
            "compute_ms": 1e3 * self.compute,
            "link": {"measured": self.measured, **self.link.facts()},
            "codecs": [estimate.facts() for estimate in self.estimates],
        }


class _Times(NamedTuple):
    encode: Timing
    decode: Timing
    payload_bytes: int
    collective: str


def job_size() -> int:
    """Number of ranks of the job that this process was started in; 1 outside."""
    return int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("HOROVOD_SIZE") or "1")


def advise(
    configs: Iterable[str],
    sizes: Sequence[int],
    link: Link,
    count: int,
    *,
    compute: float,
    seconds: float,
    job: Workers | None = None,
) -> Advice:
    """Measure codecs, on all ranks of a job at the same time if there is one, and estimate steps.

    Parameters
    ----------
    configs : iterable of str
        Of codecs; Horovod's dense and fp16 are compared, too.
    sizes : sequence of int
        Entries of the model's tensors.
    link : Link
    count : int
        Number of ranks.
    compute : float
        Seconds of a step without the exchange.
    seconds : float
        Time for each figure.
    """
    repeated = Counter(sizes)
    gradients = {n: Gradients(n) for n in repeated}

    def cost(name: str, times_of: Callable[[Gradients], _Times]) -> Cost:
        encode, decode, nbytes, collective = 0.0, 0.0, 0, ""
        for n, repeats in repeated.items():
            if job is not None:
                job.barrier()
            times = times_of(gradients[n])
            collective = times.collective
            nbytes += repeats * times.payload_bytes
            encode, decode = (
                encode + repeats * _slowest(times.encode, job),
                decode + repeats * _slowest(times.decode, job),
            )
        return Cost(name, nbytes, encode, _wire(link, collective, nbytes), decode)

    costs = [dense_cost(link, 4 * sum(sizes)), cost("fp16", partial(_half, seconds=seconds))]
    costs += [cost(config, partial(_times, config, workers=count, seconds=seconds)) for config in configs]
    return Advice(count, sizes, compute, link, job is not None, estimate(costs, compute))


def _slowest(timing: Timing, job: Workers | None) -> float:
    """Median of what all wait for: in each step for the rank that is slowest in that step."""
    ranks = [timing.samples] if job is None else job.gather(timing.samples, "samples")
    return Timing(tuple(map(max, zip(*ranks, strict=False)))).median


def _wire(link: Link, collective: str, nbytes: int) -> float:
    """Seconds of a collective; beside an allgather Horovod reduces one number."""
    beside = link.allreduce.latency if collective == "allgather" else 0.0
    line = getattr(link, collective)
    return float(line.seconds(nbytes)) + beside


def _times(config: str, gradients: Gradients, *, workers: int, seconds: float) -> _Times:
    measured = measure(config, gradients, min(workers, _MEASURED_WORKERS), seconds)
    decode = measured.decode
    if workers > _MEASURED_WORKERS and measured.collective == "allgather":
        fewer = measure(config, gradients, 1, seconds).decode.median
        each = max(0.0, decode.median - fewer) / (_MEASURED_WORKERS - 1)
        decode = Timing(tuple(sample + each * (workers - _MEASURED_WORKERS) for sample in decode.samples))
    return _Times(measured.encode, decode, measured.payload_bytes, measured.collective)


def _half(gradients: Gradients, *, seconds: float) -> _Times:
    """Horovod's own fp16: a cast there and one back, by torch where it is installed."""
    torch = find_torch()
    half, single = ("float16", "float32") if torch is None else (torch.float16, torch.float32)
    arrays = gradients.arrays if torch is None else [torch.from_numpy(x) for x in gradients.arrays]

    def cast(x: Any, dtype: Any) -> Any:
        return gradients.ops.cast(x, dtype) if torch is None else x.to(dtype)

    halves = cast(arrays[0], half)
    there = timed(lambda i: cast(arrays[i % len(arrays)], half), seconds)
    back = timed(lambda _: cast(halves, single), seconds)
    return _Times(there, back, 2 * gradients.n, "allreduce_fp16")
