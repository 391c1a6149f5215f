"""What a call takes, by the clock of the host or of the device that works for it."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

__all__ = ["Clock", "DeviceClock", "HostClock", "clock_of"]


class Clock(Protocol):
    """Measures one call at a time."""

    def start(self) -> None:
        """Begin, when nothing of earlier calls is under way."""

    def stop(self) -> float:
        """Seconds since `start`, until all that was begun since is done."""


class HostClock:
    """For calls that have done their work when they return."""

    def start(self) -> None:
        self._began = perf_counter()

    def stop(self) -> float:
        return perf_counter() - self._began


class DeviceClock:
    """For calls that only hand their work to a GPU: by events before and behind it on the current stream.

    That counts the gaps in which the device has nothing to do because the host is not fast enough, but not the time in
    which the host learns that the device is done.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._begin, self._end = (cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        self._cuda.synchronize()
        self._begin.record()

    def stop(self) -> float:
        self._end.record()
        self._end.synchronize()
        return 1e-3 * float(self._begin.elapsed_time(self._end))


def clock_of(device: str) -> Clock:
    """The clock of what computes there: "cpu", or a device of torch's."""
    if device == "cpu":
        return HostClock()
    import torch

    return DeviceClock(torch.cuda)
