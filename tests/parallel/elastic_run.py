"""A worker of an elastic job, whose workers come and go: it trains until it is told to end, and writes down its steps.

``python -m tests.parallel.elastic_run FOLDER CONFIG LATER`` under ``horovodrun --host-discovery-script``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import horovod.torch as hvd

from tests.parallel.models import compressor, loss_of, network, parameters_of, states, wrap

COMMIT_EVERY = 5
FIRST_WORKERS = 4
CHANGE_AT = 12
"""Batch from which on the second config is used."""

LAST = "last"
"""File that tells the workers to end, at their next commit."""

PACE_SECONDS = 0.02
"""Pause in each step, when half of it has been sent: who watches can step in before the model has learnt all."""


class Log:
    """What one process writes, in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"worker-{os.getpid()}.jsonl").open("a", buffering=1)

    def write(self, kind: str, **facts: Any) -> None:
        """Add a line; it is whole once it is there, whatever becomes of the process."""
        process = {"pid": os.getpid(), "host": os.environ["HOROVOD_HOSTNAME"], "rank": hvd.rank(), "size": hvd.size()}
        self._file.write(json.dumps({"kind": kind, "time": time.time(), **process, **facts}) + "\n")


def digest(values: Mapping[str, bytes]) -> dict[str, str]:
    """Return what tells different bits apart; nothing for zeros."""
    return {name: hashlib.sha256(value).hexdigest()[:16] if any(value) else "" for name, value in values.items()}


@hvd.elastic.run
def train(state: Any, later: str, folder: Path, log: Log) -> None:
    """Train until the file `LAST` is there; called anew whenever workers have come or gone."""
    name = hvd.broadcast_object(uuid.uuid4().hex, name="tests.round")
    log.write("begin", round=name, batch=state.batch, kept=digest(states(state.compression)))
    last = False
    while not last:
        if state.batch == CHANGE_AT:
            state.compression.reconfigure(later)
        state.optimizer.zero_grad()
        loss = loss_of(state.model, state.batch, hvd.rank())
        loss.backward()
        state.optimizer.step()
        facts = {"model": digest(parameters_of(state.model)), "steps": state.compression.progress().steps}
        log.write("step", round=name, batch=state.batch, loss=loss.item(), **facts)
        state.batch += 1
        if state.batch % COMMIT_EVERY == 0:
            log.write("commit", round=name, batch=state.batch, kept=digest(states(state.compression)))
            state.commit()
            last = hvd.broadcast_object((folder / LAST).exists(), name="tests.last")


def start(folder: Path) -> None:
    """Initialise Horovod once the first workers are all there."""
    (folder / f"here-{os.getpid()}").touch()
    while len(list(folder.glob("here-*"))) < FIRST_WORKERS:
        time.sleep(0.05)
    # As long as a worker waits for a dead one that it has no connection with.
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "8"
    hvd.init()
    # As long as the others wait from now on for new ones, which have to start first.
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "90"


def main() -> None:
    """Train the small network in this process."""
    folder, config, later = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    start(folder)
    model, compression = network(), compressor(config)
    model[1].register_full_backward_hook(lambda *_: time.sleep(PACE_SECONDS))
    optimizer = wrap(hvd, model, compression)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, compression=compression, batch=0)
    train(state, later, folder, Log(folder))


if __name__ == "__main__":
    main()
