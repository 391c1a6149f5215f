"""PowerSGD on one large square matrix: stock Horovod with our codec beside PyTorch's DDP with its own hook, one run."""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import horovod.torch as hvd
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hvd_compress.bench.exchange import Exchanger
from hvd_compress.study.command import Parser

__all__ = ["Row", "main", "measure"]

WARM_UP_STEPS = 4
"""PyTorch's hook goes densely in its first two steps, and DDP arranges its buckets anew in the second."""


class Row(NamedTuple):
    """One method.

    Attributes
    ----------
    method : str
    rows, ranks : int
        Rows and columns of the matrix; how many ranks exchange it.
    exchange_ms : float
        From the call to the combined gradient, on the slowest rank: the median. DDP exchanges within a backward pass,
        of which nothing but filling the gradient is left here.
    """

    method: str
    rows: int
    ranks: int
    exchange_ms: float


class Ddp:
    """A backward pass of PyTorch's own data parallelism."""

    def __init__(self, side: int, rank: int | None) -> None:
        self._model = DistributedDataParallel(_Matrix(side))
        if rank is not None:
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
            self._model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        generator = torch.Generator().manual_seed(hvd.rank())
        self._gradients = [torch.randn((side, side), generator=generator) for _ in range(2)]
        self._steps = 0

    def step(self) -> float:
        """Seconds of the next one."""
        loss = self._model(self._gradients[self._steps % 2])
        self._steps += 1
        hvd.barrier()
        start = perf_counter()
        loss.backward()
        return perf_counter() - start


class _Matrix(torch.nn.Module):
    """A loss whose gradient is what it is given."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(side, side))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


def measure(side: int, rank: int, steps: int) -> Iterator[Row]:
    """Measure all methods; every rank of a Horovod job must call it."""
    shapes = {"gradient": (side, side)}
    ours: dict[str, Callable[[], Callable[[], float]]] = {
        f"hvd_compress powersgd:rank={rank}": lambda: _exchange(f"powersgd:rank={rank}", shapes),
        "horovod dense": lambda: _exchange("none", shapes),
        f"DDP PowerSGD hook, rank {rank}": lambda: Ddp(side, rank).step,
        "DDP dense": lambda: Ddp(side, None).step,
    }
    with _process_group():
        for method, make in ours.items():
            step = make()
            seconds = [max(hvd.allgather_object(step(), name="square.step")) for _ in range(WARM_UP_STEPS + steps)]
            middle = sorted(seconds[WARM_UP_STEPS:])[(steps - 1) // 2]
            yield Row(method, side, hvd.size(), round(1e3 * middle, 3))


def _exchange(config: str, shapes: Mapping[str, tuple[int, ...]]) -> Callable[[], float]:
    exchanger = Exchanger(config, shapes)
    return lambda: exchanger.step().exchange


@contextmanager
def _process_group() -> Iterator[None]:
    """PyTorch's group of the same ranks, by Gloo, on the network that leads to rank 0."""
    with tempfile.TemporaryDirectory() as own:
        # The ranks' hosts share this machine's disk, or a network's.
        folder: Any = hvd.broadcast_object(own, root_rank=0, name="square.folder")
        names = [name for _, name in socket.if_nameindex() if name != "lo"]
        if names and hvd.cross_size() > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
        store = Path(folder) / "store"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=hvd.rank(), world_size=hvd.size())
        try:
            yield
        finally:
            hvd.barrier()
            dist.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure in this rank's job and print rows as JSON, a line each, on rank 0; returns the exit status."""
    parser = Parser(prog="bench_powersgd", description=__doc__, allow_abbrev=False)
    parser.add_argument("--entries", type=_entries, default="25.6e6", help="of the matrix (default: %(default)s)")
    parser.add_argument("--rank", type=int, default=4, help="of the approximation (default: %(default)s)")
    parser.add_argument("--steps", type=_entries, default="9", help="repetitions (default: %(default)s)")
    arguments = parser.parse_args(argv)
    hvd.init()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for row in measure(math.isqrt(arguments.entries), arguments.rank, arguments.steps):
        if hvd.rank() == 0:
            print(json.dumps(row._asdict()), flush=True)
    return 0


def _entries(text: str) -> int:
    number = round(float(text))
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number
