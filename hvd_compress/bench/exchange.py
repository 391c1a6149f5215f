"""Measures exchanges of a gradient on this rank of a Horovod job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import perf_counter
from typing import Any, NamedTuple

import horovod.torch as hvd
import torch

from hvd_compress.bench.exchange_rows import Row, config_of_method
from hvd_compress.bench.resnet50 import shapes
from hvd_compress.stats import Counts, Stats
from hvd_compress.torch import Compression

__all__ = ["measure", "shapes_of"]

WARM_UP_STEPS = 3
SECONDS_PER_CASE = 8.0
FEWEST_STEPS = 2
GRADIENTS = 2


class Step(NamedTuple):
    """What one exchange took on one rank."""

    exchange: float
    encode: float
    wait: float
    decode: float
    sent_bytes: int


class Timed:
    """Horovod's own compressors with the counts that ours keep."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._counts = Counts()

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Let Horovod's compressor compress."""
        start = perf_counter()
        compressed, context = self._own.compress(tensor)
        self._counts.add(Counts(tensor.nbytes, compressed.nbytes, encode_seconds=perf_counter() - start))
        return compressed, context

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Let Horovod's compressor decompress."""
        start = perf_counter()
        result: torch.Tensor = self._own.decompress(tensor, context)
        self._counts.add(Counts(decode_seconds=perf_counter() - start))
        return result

    def stats(self) -> Stats:
        """Return the counts so far: a snapshot."""
        stats = Stats()
        stats.add("", self._counts, compressed=True)
        return stats


class Exchanger:
    """Stock Horovod's optimizer with gradients that are there already."""

    def __init__(self, config: str, named_shapes: Mapping[str, tuple[int, ...]]) -> None:
        chosen = Compression.from_config(config)
        self._compression = chosen if hasattr(chosen, "stats") else Timed(chosen)
        generator = torch.Generator().manual_seed(hvd.rank())
        self._gradients = [
            [torch.randn(shape, generator=generator) for shape in named_shapes.values()] for _ in range(GRADIENTS)
        ]
        named = [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in named_shapes.items()]
        self._parameters = [parameter for _, parameter in named]
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self._parameters, lr=0.1), named_parameters=named, compression=self._compression
        )
        self._steps = 0

    def step(self) -> Step:
        """Exchange the next gradient."""
        for parameter, gradient in zip(self._parameters, self._gradients[self._steps % GRADIENTS], strict=True):
            parameter.grad = gradient.clone()
        self._steps += 1
        before = self._compression.stats().total
        hvd.barrier()
        start = perf_counter()
        self._optimizer.synchronize()
        seconds = perf_counter() - start
        after = self._compression.stats().total
        encode, decode = after.encode_seconds - before.encode_seconds, after.decode_seconds - before.decode_seconds
        # What is neither encoding nor decoding is waiting, Horovod's own work included.
        return Step(seconds, encode, seconds - encode - decode, decode, after.sent_bytes - before.sent_bytes)


def shapes_of(n: int, tensors: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the gradient: one tensor of `n` entries, or ResNet-50's.

    Examples
    --------
    >>> shapes_of(10, 1)
    {'gradient': (1, 10)}
    """
    return {"gradient": (1, n)} if tensors == 1 else shapes()


def measure(method: str, n: int, tensors: int, steps: int, rate: str) -> Row:
    """Measure one method; every rank of the job must call it, and gets the same row.

    Parameters
    ----------
    method : str
        Name out of `METHODS`, or a config string.
    n, tensors : int
        As for `shapes_of`.
    steps : int
        Repetitions after the warm-up; fewer where they would take more than 8 seconds, but at least 2.
    rate : str
        What the network is called in the row.
    """
    named_shapes = shapes_of(n, tensors)
    exchanger = Exchanger(config_of_method(method), named_shapes)
    for done in range(1, WARM_UP_STEPS + 1):
        seconds = max(step.exchange for step in _of_all_ranks(exchanger.step()))
        if done * seconds > SECONDS_PER_CASE / 8:
            break
    repetitions = min(steps, max(FEWEST_STEPS, int(SECONDS_PER_CASE / seconds)))
    slowest = [max(_of_all_ranks(exchanger.step())) for _ in range(repetitions)]
    middle = sorted(slowest)[(len(slowest) - 1) // 2]
    exchange, encode, wait, decode = (round(1e3 * value, 3) for value in middle[:4])
    entries = sum(math.prod(shape) for shape in named_shapes.values())
    return Row(method, hvd.cross_size(), rate, entries, tensors, exchange, encode, wait, decode, middle.sent_bytes)


def _of_all_ranks(step: Step) -> list[Step]:
    return list(hvd.allgather_object(step, name="bench.step"))
