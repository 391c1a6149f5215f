"""A trace of what the compressor does, in Chrome's format, beside the one that ``HOROVOD_TIMELINE`` asks of Horovod."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, time
from typing import Any

__all__ = ["VARIABLE", "Timeline", "join"]

VARIABLE = "HVD_COMPRESS_TIMELINE"
_MICROSECONDS = 1e6
_START = "start_time_since_epoch_in_micros"


class Timeline:
    """One rank's trace: for each tensor when it was encoded, on its way and decoded.

    Written to ``NAME.RANK.SUFFIX`` for a path ``NAME.SUFFIX``. Times count from the trace's start, which one of the
    first events tells since the epoch, as Horovod's does: `join` needs it. The array in the file has no end, which
    viewers do without.
    """

    def __init__(self, path: str, rank: int) -> None:
        whole = Path(path)
        self.path = whole.with_name(f"{whole.stem}.{rank}{whole.suffix}")
        self._start = perf_counter()
        epoch = round(time() * _MICROSECONDS)
        self._rows: dict[str, int] = {}
        self._lines: list[str] = []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("[\n", encoding="utf-8")
        # Horovod has a number for each tensor, from 0.
        self._process = 1_000_000 + rank
        self._note(name="process_name", ph="M", args={"name": f"hvd_compress, rank {rank}"})
        self._note(name="process_start", ph="M", args={_START: epoch})
        atexit.register(self.flush)

    @classmethod
    def from_environment(cls, rank: int) -> Timeline | None:
        """The timeline that ``HVD_COMPRESS_TIMELINE`` asks for; one for all compressors of the process."""
        path = os.environ.get(VARIABLE)
        if not path:
            return None
        key = (path, rank)
        if key not in _open:
            _open[key] = cls(path, rank)
        return _open[key]

    def add(self, tensor: str, what: str, start: float, end: float) -> None:
        """Note that something happened to a tensor between two readings of ``time.perf_counter``."""
        if tensor not in self._rows:
            self._rows[tensor] = len(self._rows) + 1
            self._note(name="thread_name", ph="M", tid=self._rows[tensor], args={"name": tensor})
        begin = (start - self._start) * _MICROSECONDS
        length = (end - start) * _MICROSECONDS
        self._note(name=what, ph="X", ts=round(begin, 1), dur=round(length, 1), tid=self._rows[tensor])

    def flush(self) -> None:
        """Write what was noted."""
        if self._lines:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(self._lines)
            self._lines.clear()

    def _note(self, **event: Any) -> None:
        self._lines.append(json.dumps({**event, "pid": self._process}) + ",\n")


_open: dict[tuple[str, int], Timeline] = {}


def join(paths: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Events of several traces, Horovod's among them, on the clock of the first.

    Raises
    ------
    OSError
        If a file cannot be read.
    ValueError
        If one is no such trace, or does not tell its start; the message names it.
    """
    joined: list[dict[str, Any]] = []
    first: int | None = None
    for path in paths:
        events = _events_of(Path(path))
        starts = [event["args"][_START] for event in events if _START in event.get("args", {})]
        if not starts:
            raise ValueError(f"{path}: no event tells {_START}")
        first = starts[0] if first is None else first
        joined += [{**event, "ts": event["ts"] + starts[0] - first} if "ts" in event else event for event in events]
    return joined


def _events_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8").rstrip().removesuffix("]").rstrip().removesuffix(",")
    try:
        events = json.loads(text + "]")
    except ValueError as error:
        raise ValueError(f"{path}: no trace in Chrome's format: {error}") from error
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{path}: no trace in Chrome's format: no list of events")
    return events
