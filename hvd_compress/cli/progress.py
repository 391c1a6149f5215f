"""What a person at a terminal sees while a command works."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

__all__ = ["tracked", "working"]

T = TypeVar("T")


def working(text: str) -> AbstractContextManager[Any]:
    """Show on a terminal that something is going on."""
    return Console(stderr=True).status(text) if (Console := _watched()) else nullcontext()


def tracked(items: Collection[T], text: str, weights: Sequence[float] | None = None) -> Iterable[T]:
    """Give the items one by one, and show on a terminal how much is done and the time left.

    With `weights`, how long each is expected to take, nothing is drawn while one is worked on.
    """
    if not (Console := _watched()):
        return items
    if weights is not None:
        return _weighed(items, text, weights, Console(stderr=True))
    from rich.progress import track

    return track(items, text, console=Console(stderr=True), transient=True)


def _weighed(items: Collection[T], text: str, weights: Sequence[float], console: Any) -> Iterator[T]:
    from rich.progress import Progress

    with Progress(console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task(text, total=sum(weights))
        progress.refresh()
        for item, weight in zip(items, weights, strict=True):
            yield item
            progress.update(task, advance=weight, refresh=True)


def _watched() -> Any:
    """rich's class for a terminal, where a person sees standard error and rich is installed."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console
