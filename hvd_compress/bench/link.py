"""What a message costs between the ranks: from a rate, or measured in a job with Horovod's own collectives."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from hvd_compress.study.workers import Workers

__all__ = ["Line", "Link", "link_at", "measure_link", "rate_of"]

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_LATENCY = 1e-4
"""Of one message, in seconds, where nothing was measured: between two hosts on Ethernet."""
_SMALL, _LARGE, _LARGEST = 1 << 16, 1 << 21, 1 << 27
_ENOUGH_SECONDS, _MEASURE_SECONDS = 0.5, 1.0


class Line(NamedTuple):
    """Time of a collective: `latency` + bytes of one rank's buffer * `per_byte`, in seconds."""

    latency: float
    per_byte: float

    def seconds(self, nbytes: float) -> float:
        """Time for so many bytes."""
        return self.latency + nbytes * self.per_byte


class Link(NamedTuple):
    """What each kind of collective costs.

    Attributes
    ----------
    allreduce, allreduce_fp16, allgather : Line
        Of float32, of float16, of bytes.
    """

    allreduce: Line
    allreduce_fp16: Line
    allgather: Line

    def facts(self) -> dict[str, Any]:
        """JSON-ready form: latency in ms, rate in bytes of one rank's buffer a second (None: without limit)."""
        return {
            name: {"latency_ms": 1e3 * line.latency, "bytes_per_second": 1 / line.per_byte if line.per_byte else None}
            for name, line in self._asdict().items()
        }


def rate_of(text: str) -> float:
    """Bytes a second of ``100mbit`` or ``1gbit``.

    Raises
    ------
    ValueError
        If it is of another form, or zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(kbit|mbit|gbit)", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"must be a rate such as 100mbit or 1gbit, got {text!r}")
    return float(match[1]) * _UNITS[match[2]] / 8


def link_at(bytes_per_second: float, workers: int) -> Link:
    """Rings of ranks, one on each host: what the rate and an usual latency allow; adding costs nothing."""
    turns = workers - 1
    allreduce = Line(2 * turns * _LATENCY, 2 * turns / workers / bytes_per_second)
    return Link(allreduce, allreduce, Line(turns * _LATENCY, turns / bytes_per_second))


def measure_link(horovod: Any, workers: Workers, dense_bytes: int) -> Link:
    """Time stock Horovod's collectives of torch at two sizes each, the slowest rank counting.

    Parameters
    ----------
    horovod : module
        ``horovod.torch``, initialised.
    dense_bytes : int
        Of the gradient: larger messages are not tried.
    """
    import torch

    def allreduce(buffer: Any, name: str) -> None:
        # In place and averaged, as an optimizer does it.
        horovod.allreduce_(buffer, op=horovod.Average, name=name)

    def gather(buffer: Any, name: str) -> None:
        horovod.allgather(buffer, name=name)

    calls = (allreduce, torch.float32), (allreduce, torch.float16), (gather, torch.uint8)
    return Link(*(_line(call, dtype, workers, dense_bytes) for call, dtype in calls))


def _line(call: Callable[[Any, str], None], dtype: Any, workers: Workers, dense_bytes: int) -> Line:
    import torch

    def seconds(nbytes: int, runs: int) -> float:
        buffer = torch.ones(nbytes // dtype.itemsize, dtype=dtype)
        # Under one name Horovod negotiates once.
        name, samples = f"bench.{call.__name__}.{dtype}.{nbytes}", []
        for _ in range(runs):
            workers.barrier()
            start = perf_counter()
            call(buffer, name)
            samples.append(perf_counter() - start)
        return float(max(workers.gather(median(samples[1:]), "seconds")))

    large, longest = _LARGE, max(_LARGE, min(dense_bytes, _LARGEST))
    while (once := seconds(large, 2)) < _ENOUGH_SECONDS and large < longest:
        large = min(4 * large, longest)
    runs = 1 + max(2, min(10, math.ceil(_MEASURE_SECONDS / once)))
    return _through((_SMALL, seconds(_SMALL, 11)), (large, seconds(large, runs)))


def _through(small: tuple[int, float], large: tuple[int, float]) -> Line:
    per_byte = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
    return Line(max(0.0, small[1] - small[0] * per_byte), per_byte)
