"""What the compressor costs beside Horovod's collectives: ResNet-50's tensors with a codec that sends nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import horovod.torch as hvd
import torch
from rich.console import Console
from rich.table import Table

from hvd_compress.bench.resnet50 import shapes
from hvd_compress.codec import Array, Codec, Reduction, State
from hvd_compress.codecs.none import Dense
from hvd_compress.exchange import spec_of
from hvd_compress.generator import Site
from hvd_compress.ops import Kernels, ops_for
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.policy import BySize
from hvd_compress.study.errors import UsageError
from hvd_compress.study.workers import Workers, run_on_all_ranks
from hvd_compress.torch import Compressor
from hvd_compress.wire import row_nbytes

__all__ = ["main"]

WARM_UP = 10


@dataclass(frozen=True)
class Nothing(Codec):
    """Sends a header and its seal, and leaves the gradient alone."""

    name = "nothing"
    paper = "none"

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        return Payload((), ops.equal(1, 0), (ops.shape(x)[0],), entries=0), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return ops.zeros(spec.numel)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        return into

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return ()


def _through(compressor: Compressor, parameters: dict[str, torch.nn.Parameter]) -> Callable[[], None]:
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parameters.values(), lr=0.0),
        named_parameters=parameters.items(),
        compression=compressor,
    )

    def exchange() -> None:
        for parameter in parameters.values():
            # What is combined already is not compressed again.
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()
        optimizer.synchronize()

    return exchange


def _collectives_alone(policy: BySize, parameters: dict[str, torch.nn.Parameter]) -> Callable[[], None]:
    """The same buffers, with nothing done to them."""
    specs = {name: spec_of(ops_for(parameter), parameter) for name, parameter in parameters.items()}
    codecs = {name: policy.for_tensor(name, spec) for name, spec in specs.items()}
    dense = {f"alone.{name}": torch.zeros(specs[name].shape) for name in codecs if isinstance(codecs[name], Dense)}
    rows = {
        f"alone.row.{name}": torch.zeros(row_nbytes(codec, specs[name]), dtype=torch.uint8)
        for name, codec in codecs.items()
        if not isinstance(codec, Dense)
    }
    ones = {f"alone.one.{name}": torch.ones(1) for name in rows}

    def exchange() -> None:
        handles = [hvd.allgather_async(row, name=name) for name, row in rows.items()]
        handles += [hvd.allreduce_async_(tensor, name=name) for name, tensor in (dense | ones).items()]
        for handle in handles:
            hvd.synchronize(handle)

    return exchange


def _milliseconds(exchange: Callable[[], None], steps: int) -> float:
    """Median of the slowest rank's times."""
    seconds = []
    for _ in range(WARM_UP + steps):
        hvd.barrier()
        start = perf_counter()
        exchange()
        seconds.append(perf_counter() - start)
    of_ranks: list[list[float]] = hvd.allgather_object(seconds[WARM_UP:])
    slowest: list[float] = [max(times) for times in zip(*of_ranks, strict=True)]
    return 1000 * median(slowest)


def _measure(steps: int, workers: Workers) -> dict[str, Any]:
    if workers.size == 1:
        raise UsageError("one rank has nobody to exchange gradients with: start at least two")
    torch.set_num_threads(1)
    policy = BySize(Nothing())
    parameters = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes().items()}
    alone = _milliseconds(_collectives_alone(policy, parameters), steps)
    compressor = Compressor(policy)
    through = _milliseconds(_through(compressor, parameters), steps)
    # Horovod exchanges without it what it takes for combined already.
    assert compressor.stats().steps == WARM_UP + steps
    return {
        "ranks": workers.size,
        "tensors": len(parameters),
        "collectives_ms": round(alone, 2),
        "step_ms": round(through, 2),
        "overhead_ms": round(through - alone, 2),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and show; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="bench_overhead",
        description="Milliseconds that the compressor itself takes for ResNet-50's 161 tensors, beside the same "
        "collectives alone. Started by mpirun or horovodrun.",
    )
    parser.add_argument("--steps", type=int, default=50, help="repetitions (default: 50)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    arguments = parser.parse_args(argv)
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    return run_on_all_ranks(lambda: _show(arguments, Workers(hvd)), hvd)


def _show(arguments: argparse.Namespace, workers: Workers) -> None:
    measured = _measure(arguments.steps, workers)
    if workers.rank != 0:
        return
    if arguments.json:
        print(json.dumps(measured))
        return
    table = Table("ranks", "tensors", "collectives alone ms", "whole step ms", "compressor's own ms")
    table.add_row(*(str(value) for value in measured.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
