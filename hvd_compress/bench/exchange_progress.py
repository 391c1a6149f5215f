"""What a person sees while exchanges are measured: a bar with the time left, or a line for each row."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hvd_compress.bench.exchange_rows import Row

__all__ = ["Reporter", "reporting"]


class Reporter:
    """Says on standard error what is measured, what came of it, and how long the rest will take."""

    def __init__(self, weights: Sequence[float], bar: Progress | None) -> None:
        self._weights = list(weights)
        self._total = sum(weights)
        self._start = time.monotonic()
        self._bar = bar
        self._task = None if bar is None else bar.add_task("", total=self._total, left="")

    def begin(self, network: str) -> None:
        """Measuring begins on another network."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=network)

    def advance(self, row: Row) -> None:
        """The next row is there."""
        weight, self._weights = self._weights[0], self._weights[1:]
        rest = sum(self._weights)
        spent = time.monotonic() - self._start
        left = f"about {timedelta(seconds=round(spent * rest / (self._total - rest)))} left"
        text = f"{row.hosts} hosts, {row.rate}, {row.tensors} tensor{'s' * (row.tensors > 1)}: {row.method}"
        if self._bar is None or self._task is None:
            print(f"{text} {row.exchange_ms:.1f} ms; {left}", file=sys.stderr, flush=True)
        else:
            self._bar.update(self._task, advance=weight, description=text, left=left)


@contextmanager
def reporting(weights: Sequence[float]) -> Iterator[Reporter]:
    """A reporter of as many rows as there are weights: how long each is expected to take, in any unit."""
    if not sys.stderr.isatty():
        yield Reporter(weights, None)
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Reporter(weights, bar)
