"""What a person sees while a model trains: a bar with the time left, or a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.results import RunResult

SECONDS_BETWEEN_LINES = 10.0


def headline(config: TrainConfig, parameters: int, workers: int, done: int) -> str:
    """What is about to be trained, and that compression is idle where it is."""
    text = (
        f"{config.compression}: {config.size} model, {parameters:,} parameters, {workers} worker{'s' * (workers > 1)}, "
        f"{config.steps} steps of {config.batch_size} x {config.sequence_length} words"
    )
    if done:
        text += f", going on after step {done}"
    if workers == 1:
        text += "\nOne worker has nobody to exchange gradients with: compression is idle. Start two with mpirun -np 2."
    return text


def summary(result: RunResult) -> str:
    """What came of it, in one line."""
    traffic, equal = result.traffic, "equal" if result.parameters_equal else "NOT equal"
    return (
        f"{result.config['compression']}: test perplexity {result.test_perplexity:.2f}, "
        f"{traffic.sent_bytes:,} bytes a step and worker ({traffic.compression_ratio:.1f} times less than dense), "
        f"{result.milliseconds.step:.0f} ms a step; parameters {equal} on all ranks "
        f"(crc32 {' '.join(f'{crc:08x}' for crc in result.parameter_crc32)})"
    )


class Reporter(Protocol):
    """Takes what there is to say about a run."""

    def advance(self, step: int, note: str) -> None:
        """``step`` steps are done; ``note`` says how the model fares."""


def writes_to_terminal() -> bool:
    """Whether a person watches standard output.

    Open MPI gives its ranks a pseudo-terminal even when its own output goes to a file, so the launcher's is asked too.
    """
    if not sys.stdout.isatty():
        return False
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return True
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return True


class _Silent:
    def advance(self, step: int, note: str) -> None:
        pass


class _Lines:
    """A line every ten seconds, for files and pipes."""

    def __init__(self, title: str, total: int, done: int) -> None:
        self._title, self._total, self._first = title, total, done
        self._start = self._last = time.monotonic()

    def advance(self, step: int, note: str) -> None:
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_LINES and step < self._total:
            return
        self._last = now
        left = (now - self._start) / (step - self._first) * (self._total - step)
        print(f"{self._title}: step {step}/{self._total}, {timedelta(seconds=round(left))} left, {note}", flush=True)


class _Bar:
    def __init__(self, progress: Progress, title: str, total: int, done: int) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=total, completed=done, note="")

    def advance(self, step: int, note: str) -> None:
        self._progress.update(self._task, completed=step, note=note)


@contextmanager
def reporting(title: str, total: int, done: int = 0, *, silent: bool = False) -> Iterator[Reporter]:
    """A reporter of ``total`` steps, ``done`` of which lie behind; silent on all ranks but one."""
    if silent:
        yield _Silent()
    elif writes_to_terminal():
        text = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        rest = TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}")
        with Progress(*text, *rest, console=Console(force_terminal=True), refresh_per_second=4) as progress:
            yield _Bar(progress, title, total, done)
    else:
        yield _Lines(title, total, done)
