"""A training in which something happens to rank 1, and what is there when all of its processes have ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_compress.codec import Reduction
from hvd_compress.launch import Launcher, started_workers
from hvd_compress.torch.collective import HorovodCollective
from tests.parallel.harness import FOLDER, Folder, new_folder
from tests.parallel.inner import Watchdog, rank_of_process
from tests.parallel.models import Tensors, codec_of, compressor, noise, parameters_of, states, wrap
from tests.parallel.ranks import REPOSITORY

WORKERS = 2
STEPS, BROKEN = 8, 5
SHAPES = {"first": (40, 50), "bias": (50,), "second": (50, 40)}

LIMIT_SECONDS = 60.0
"""How long processes may take to end after a fault."""

START_SECONDS = 180.0
"""How long a launch may take to come to its fault; seconds are usual."""

WATCHDOG_SECONDS = 900.0
"""How long a rank may live: longer than anything that is waited for here, so that a hang is noticed from outside."""

POLL_SECONDS = 0.02


def main(config: str, fault: str) -> None:
    """Train twice on this rank, straight and with the fault, and leave a checkpoint of each step."""
    import horovod.torch as hvd

    folder = Folder(Path(os.environ[FOLDER]))
    Watchdog(folder, rank_of_process()).start(WATCHDOG_SECONDS)
    hvd.init()
    course(hvd, config, folder.path / "straight")
    leave(folder.path / f"end-{hvd.rank()}", course(hvd, config, folder.path / "broken", fault))


def course(hvd: Any, config: str, folder: Path, fault: str = "") -> dict[str, bytes]:
    """Train once and return the parameters; a rank that an error ends leaves its last words."""
    folder.mkdir(exist_ok=True)
    rank, step = hvd.rank(), 0
    model, compression = Tensors(SHAPES), compressor(config)
    optimizer = wrap(hvd, model, compression)
    try:
        for step in range(STEPS):
            if step == BROKEN:
                if fault and rank == 1:
                    FAULTS[fault](config, compression, optimizer)
                if codec_of(config).reduction is Reduction.SUM:
                    # All that is gathered for such a codec, and so all that can be damaged on the way, is this.
                    compression.reconfigure(config)
            optimizer.zero_grad()
            model.push({name: noise(shape, step, rank, i) for i, (name, shape) in enumerate(SHAPES.items())})
            optimizer.step()
            leave(checkpoint_file(folder, step, rank), (parameters_of(model), states(compression)))
            if step == BROKEN:
                leave(folder / f"went-on-{rank}", time.monotonic())
    except BaseException as error:
        leave(folder / f"error-{rank}", (time.monotonic(), f"{type(error).__name__}: {error}", parameters_of(model)))
        raise
    return parameters_of(model)


def checkpoint_file(folder: Path, step: int, rank: int) -> Path:
    """Return where a rank saves a step."""
    return folder / f"step-{step}-rank-{rank}"


def leave(file: Path, content: object) -> None:
    """Write a file that is whole from the moment that it is there."""
    unfinished = file.with_name(f".{file.name}")
    unfinished.write_bytes(pickle.dumps(content))
    unfinished.replace(file)


def note_fault() -> None:
    """Say that it happens now, and in which process."""
    leave(Path(os.environ[FOLDER]) / "fault", (time.monotonic(), os.getpid()))


def between_two_tensors(act: Callable[[], object]) -> Callable[..., None]:
    """Return a fault that comes when the step's first tensor is with Horovod and its second one is not."""

    def prepare(config: str, compression: Any, optimizer: Any) -> None:
        compress, seen = compression.compress, []

        def compress_or_act(tensor: Any) -> Any:
            seen.append(tensor.shape)
            if len(seen) == 2:
                note_fault()
                act()
            return compress(tensor)

        compression.compress = compress_or_act

    return prepare


def with_all_handed_over(act: Callable[[], object]) -> Callable[..., None]:
    """Return a fault that comes when all of the step is with Horovod and nothing has come back."""

    def prepare(config: str, compression: Any, optimizer: Any) -> None:
        def instead() -> None:
            note_fault()
            act()

        optimizer.synchronize = instead

    return prepare


def damaged_on_the_way(config: str, compression: Any, optimizer: Any) -> None:
    """Have one bit of what this rank receives next be another."""
    wait = HorovodCollective.wait

    def damaged(self: HorovodCollective, handle: int) -> Any:
        gathered = wait(self, handle)
        note_fault()
        gathered[20] ^= 16
        return gathered

    HorovodCollective.wait = damaged  # type: ignore[method-assign]


def out_of_memory(config: str, compression: Any, optimizer: Any) -> None:
    """Have the codec find no memory."""

    def encode(*args: Any) -> Any:
        note_fault()
        raise MemoryError

    type(codec_of(config)).encode = encode  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[str, Any, Any], None]] = {
    "killed": between_two_tensors(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "exits": with_all_handed_over(lambda: os._exit(3)),
    # Horovod's launcher for Gloo takes this for an end as it should be.
    "exits with 0": between_two_tensors(lambda: os._exit(0)),
    "damaged payload": damaged_on_the_way,
    "out of memory": out_of_memory,
    "interrupted": between_two_tensors(lambda: time.sleep(1000)),
    "stopped": between_two_tensors(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
}
"""What may happen to rank 1 in the step `BROKEN`: called with config, compressor and optimizer before that step."""


class Hang(AssertionError):
    """Processes have not ended in time, or nothing has happened to them; the text holds what they printed."""


@dataclass(frozen=True)
class Run:
    """A launch that has come to its fault."""

    folder: Folder
    launcher: subprocess.Popen[bytes]
    fault_at: float
    pid: int

    def wait_for_end(self, since: float) -> float:
        """Wait until no process of the launch is left; return the seconds from `since` on."""
        deadline = since + LIMIT_SECONDS
        while self.launcher.poll() is None or processes_of(self.folder):
            if time.monotonic() > deadline:
                raise Hang(f"processes {processes_of(self.folder)} are left after {LIMIT_SECONDS:g} s")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - since

    def ends(self) -> list[dict[str, bytes]]:
        """Return the parameters of each rank that has come to the end of its training."""
        return [read(file) for file in self.folder.path.glob("end-*")]

    def saved(self, course: str = "broken") -> dict[str, bytes]:
        """Return the checkpoints of a course by the names of their files."""
        return {file.name: file.read_bytes() for file in (self.folder.path / course).glob("step-*")}

    def last_words(self, rank: int) -> tuple[float, str, dict[str, bytes]] | None:
        """Return time, error and parameters of a rank that an error ended."""
        return read(self.folder.path / "broken" / f"error-{rank}")

    def check_nothing_wrong_is_left(self) -> None:
        """Check that every rank has, on disk and in memory, what a run without the fault has at its last step."""
        saved, straight = self.saved(), self.saved("straight")
        wrong = [name for name, content in saved.items() if content != straight[name]]
        assert not wrong
        whole = [step for step in range(STEPS) if all(f"step-{step}-rank-{rank}" in saved for rank in range(WORKERS))]
        assert whole == list(range(BROKEN))
        for rank in range(WORKERS):
            words = self.last_words(rank)
            if words is not None:
                last = max(name for name in saved if name.endswith(f"-rank-{rank}"))
                assert words[2] == pickle.loads(saved[last])[0], (rank, last)


def read(file: Path) -> Any:
    """Return what `leave` has left; None if there is nothing."""
    return pickle.loads(file.read_bytes()) if file.exists() else None


@contextlib.contextmanager
def started(fault: str, config: str, launcher: Launcher, **env: str) -> Iterator[Run]:
    """Start a training as a user would and wait for its fault; on leaving, no process of it is left."""
    # Launchers end their own children; `own_launch` has a shell in between.
    argv = [sys.executable, "-u", "-m", "tests.parallel.faults", config, fault]
    with new_folder() as folder, (folder.path / "launcher.log").open("wb") as log:
        settings = {FOLDER: str(folder.path), "HOROVOD_CYCLE_TIME": "1", "OMP_NUM_THREADS": "1", **env}
        try:
            with started_workers(
                argv, workers=WORKERS, launcher=launcher, env=settings, stdout=log, stderr=log, cwd=REPOSITORY
            ) as process:
                yield Run(folder, process, *_wait_for_fault(folder, process))
        except Hang as error:
            # Ranks leave their stacks when they are ended.
            stacks = [f"-------- rank {rank} --------\n{folder.stacks(rank)}" for rank in range(WORKERS)]
            raise Hang(
                "\n".join([str(error), *stacks, "-------- output --------", folder.text("launcher.log")])
            ) from None


def _wait_for_fault(folder: Folder, process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """Return its time and its process."""
    file, deadline = folder.path / "fault", time.monotonic() + START_SECONDS
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Hang("the training has come to no fault")
        time.sleep(POLL_SECONDS)
    at, pid = read(file)
    return at, pid


def processes_of(folder: Folder) -> list[int]:
    """Return the processes of a launch that are alive."""
    entry, found = f"{FOLDER}={folder.path}".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        # Others end while this one looks.
        with contextlib.suppress(OSError):
            if entry in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
