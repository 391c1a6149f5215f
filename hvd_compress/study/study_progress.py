"""What a person sees while a study goes on: all trials and the present one, each with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Reporter", "reporting"]


class Reporter:
    """Takes the lines of the jobs, and shows them on standard error.

    Parameters
    ----------
    looks : mapping of str to int
        Looks of a trial by phase, by which trials are weighed against each other.
    total, done : int
        Looks of all trials, and of those that had ended before.
    bar : rich.progress.Progress, optional
        Where a person watches.
    """

    def __init__(self, looks: Mapping[str, int], total: int, done: int, bar: Progress | None) -> None:
        self._looks, self._total, self._done, self._first = looks, total, done, done
        self._start = self._trial_start = time.monotonic()
        self._phase, self._title = "", ""
        self._bar = bar
        self._tasks = [bar.add_task(text, total=1.0, left="", note="") for text in ("study", "trial")] if bar else []
        self._show(0.0)

    def take(self, event: Mapping[str, Any]) -> None:
        """Show what happened."""
        if event["event"] == "begin":
            self._phase, number = event["place"]
            self._trial_start = time.monotonic()
            values = ", ".join(f"{name} {value:.3g}" for name, value in event["parameters"].items())
            self._title = f"{event['cell']} {self._phase} {number + 1}: {values}"
            self._show(0.0)
        elif event["event"] == "step":
            self._show(event["done"] / event["most"], event["note"])
        else:
            self._done += self._looks[self._phase]
            text = f"{self._title}: validation {event['score']:.4g} in {event['seconds']:.0f} s; {self._left(0.0)}"
            if self._bar:
                self._bar.console.print(text)
            else:
                print(text, file=sys.stderr, flush=True)

    def _show(self, share: float, note: str = "") -> None:
        if not self._bar:
            return
        under_way = share * self._looks.get(self._phase, 0)
        self._bar.update(
            self._tasks[0], completed=(self._done + under_way) / max(1, self._total), left=self._left(share)
        )
        spent = time.monotonic() - self._trial_start
        left = f"at most {timedelta(seconds=round(spent / share * (1 - share)))} left" if share else ""
        self._bar.update(self._tasks[1], completed=share, description=self._title, left=left, note=note)

    def _left(self, share: float) -> str:
        """Time left in all, as if the rest took as long a look as what was done in this sitting."""
        done = self._done + share * self._looks.get(self._phase, 0)
        if done == self._first:
            return ""
        seconds = (time.monotonic() - self._start) / (done - self._first) * (self._total - done)
        return f"about {timedelta(seconds=round(seconds))} left"


@contextmanager
def reporting(looks: Mapping[str, int], total: int, done: int) -> Iterator[Reporter]:
    """A reporter: with bars where standard error is a terminal, else with a line for each trial."""
    if not sys.stderr.isatty():
        yield Reporter(looks, total, done, None)
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn()
    rest = TextColumn("{task.fields[left]}"), TextColumn("{task.fields[note]}")
    with Progress(*columns, *rest, console=Console(stderr=True), transient=True) as bar:
        yield Reporter(looks, total, done, bar)
