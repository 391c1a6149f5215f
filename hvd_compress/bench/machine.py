"""What measuring takes from the machine: cores, threads, time, and the copy that everything is compared with."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from hvd_compress.bench.clocks import Clock, HostClock
from hvd_compress.native import kernels

__all__ = ["Timing", "copier", "find_torch", "limited_to", "timed", "usable_cores", "without_advice"]

_FEWEST, _USUAL, _MOST = 3, 5, 1000
_PATIENCE = 10
_LINE = 64


class Timing(NamedTuple):
    """Seconds of a call, each time that it was repeated."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the repetitions took no longer."""
        return float(np.median(self.samples))

    @property
    def spread(self) -> float:
        """Distance between the quartiles, as a fraction of the median."""
        low, high = np.percentile(self.samples, (25, 75))
        return float(high - low) / self.median


def timed(call: Callable[[int], object], seconds: float, clock: Clock | None = None) -> Timing:
    """Repeat ``call(i)`` for about `seconds`, but at least five times, or three times if each takes several `seconds`.

    `clock` is that of the host unless it is given.
    """
    clock, samples = clock or HostClock(), list[float]()
    while len(samples) < _FEWEST or (_still(len(samples), sum(samples), seconds) and len(samples) < _MOST):
        clock.start()
        call(len(samples))
        samples.append(clock.stop())
    return Timing(tuple(samples))


def _still(runs: int, spent: float, seconds: float) -> bool:
    return spent < (seconds if runs >= _USUAL else _PATIENCE * seconds)


def find_torch() -> Any:
    """The module torch, None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def copier(n: int, device: str = "cpu") -> Callable[[int], object]:
    """Return what copies `n` float32 once: memcpy in one thread, or the device's own copy."""
    if device != "cpu":
        torch = find_torch()
        source, target = (torch.ones(n, device=device) for _ in range(2))
        return lambda _: target.copy_(source)
    memcpy = ctypes.CDLL(None).memcpy
    memcpy.argtypes, memcpy.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
    buffers = _touched(4 * n), _touched(4 * n)

    def copy(_: int) -> None:
        to, of = buffers
        memcpy(to.ctypes.data, of.ctypes.data, 4 * n)

    return copy


def usable_cores() -> list[int]:
    """Cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


@contextmanager
def limited_to(threads: int) -> Iterator[None]:
    """Compute in so many threads, on as many cores."""
    torch, tasks = find_torch(), _tasks()
    before = {task: os.sched_getaffinity(task) for task in tasks}
    torch_threads, own_threads = torch and torch.get_num_threads(), kernels and kernels.threads()
    cores = set(usable_cores()[:threads])
    try:
        for task in tasks:
            _pin(task, cores)
        _set_threads(torch, threads, threads)
        yield
    finally:
        _set_threads(torch, torch_threads, own_threads)
        for task in _tasks():
            # Threads that were started meanwhile were pinned from the beginning.
            _pin(task, before.get(task, before[os.getpid()]))


def _touched(nbytes: int) -> np.ndarray[Any, Any]:
    memory = np.empty(nbytes + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    memory.fill(1)
    return memory[start : start + nbytes]


def _tasks() -> list[int]:
    return [int(task) for task in os.listdir("/proc/self/task")]


def _pin(task: int, cores: set[int]) -> None:
    # A thread may have ended since it was listed.
    with suppress(ProcessLookupError):
        os.sched_setaffinity(task, cores)


def _set_threads(torch: Any, torch_threads: int, own_threads: int) -> None:
    if torch is not None:
        torch.set_num_threads(torch_threads)
    if kernels is not None:
        kernels.set_threads(own_threads)


@contextmanager
def without_advice() -> Iterator[None]:
    """Keep quiet about codecs that send more than no compression would: here that is what is measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
