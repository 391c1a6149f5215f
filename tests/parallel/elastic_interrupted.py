"""A worker of an elastic job whose steps fail half-way, on every rank; no worker dies.

``python -m tests.parallel.elastic_interrupted FOLDER`` under ``horovodrun --host-discovery-script``.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch import mpi_ops

from tests.parallel.configs import CODECS
from tests.parallel.elastic_run import Log, digest
from tests.parallel.models import Tensors, compressor, noise, parameters_of, states, wrap

NAMES = ("topk-model", "randomk", "dgc-warmup")
SHAPES = {"early": (400, 400), "late": (400, 400), "small": (40,)}
BATCHES = 18
COMMIT_EVERY = 6
FAILING = (8, 15)
"""Batches that fail at the first attempt, somewhere between two commits."""


class Halfway(torch.autograd.Function):
    """The identity, whose backward pass fails once for each of `failures`."""

    failures: ClassVar[list[str]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return a copy."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Pass the gradient on, or fail."""
        if Halfway.failures:
            raise HorovodInternalError(Halfway.failures.pop())
        return gradient


def push(model: Any, batch: int) -> None:
    """Run a backward pass that comes through `Halfway` after two of the gradients and before the last."""
    given = {name: noise(shape, batch, hvd.rank(), i) for i, (name, shape) in enumerate(SHAPES.items())}
    early, late, small = ((parameter * given[name]).sum() for name, parameter in model.named_parameters())
    (Halfway.apply(early) + late + small).backward()


def live_nbytes() -> int:
    """Return the bytes of all tensors and arrays that there are."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    # NumPy tells tracemalloc of its arrays.
    return sum(storages.values()) + tracemalloc.get_traced_memory()[0]


def train(config: str, failing: Sequence[int], log: Log, case: str) -> None:
    """Train a new model; write down what it comes to."""
    model, compression = Tensors(SHAPES), compressor(config)
    optimizer = wrap(hvd, model, compression)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, compression=compression, batch=0)
    left = list(failing)

    @hvd.elastic.run
    def make_steps(state: Any) -> None:
        while state.batch < BATCHES:
            if state.batch in left:
                left.remove(state.batch)
                Halfway.failures.append(f"{case}: batch {state.batch} fails")
            before = len(mpi_ops._handle_map)
            optimizer.zero_grad()
            push(model, state.batch)
            optimizer.step()
            log.write("step", case=case, batch=state.batch, handles=before)
            state.batch += 1
            if state.batch % COMMIT_EVERY == 0:
                state.commit()
                if failing:
                    log.write("memory", case=case, batch=state.batch, nbytes=live_nbytes())

    make_steps(state)
    assert not left
    steps = compression.progress().steps
    log.write("end", case=case, steps=steps, bits=digest(parameters_of(model) | states(compression)))


def train_through_update(skip_sync: bool, log: Log) -> None:
    """Train a new model; hosts change between two commits, while a new sharing of the budget is under way."""
    model, compression = Tensors(SHAPES), compressor(CODECS["topk-model"])
    optimizer = wrap(hvd, model, compression)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, compression=compression, batch=0)
    updated: list[bool] = []

    @hvd.elastic.run
    def make_steps(state: Any) -> None:
        while state.batch < BATCHES:
            optimizer.zero_grad()
            push(model, state.batch)
            optimizer.step()
            state.batch += 1
            # What `state.check_host_updates` does.
            if mpi_ops._handle_map and not updated:
                updated.append(True)
                raise HostsUpdatedInterrupt(skip_sync)

    make_steps(state)
    assert updated
    steps = compression.progress().steps
    log.write("end", case=f"updated-{skip_sync}", steps=steps, bits=digest(parameters_of(model)))


def main() -> None:
    """Train with each of the codecs, undisturbed and with failures."""
    tracemalloc.start()
    hvd.init()
    log = Log(Path(sys.argv[1]))
    for name in NAMES:
        train(CODECS[name], (), log, f"{name}-undisturbed")
        train(CODECS[name], FAILING, log, name)
    for skip_sync in (True, False):
        train_through_update(skip_sync, log)


if __name__ == "__main__":
    main()
