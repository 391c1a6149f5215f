"""The C++ kernels, if they were built: they speed up array operations of NumPy and of torch on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["kernels", "thread_count"]


def thread_count(environment: Mapping[str, str]) -> int:
    """Threads for one process: what a variable says, else its share of the cores that it may use.

    Raises
    ------
    ValueError
        If HVD_COMPRESS_THREADS is no number above zero.
    """
    own = environment.get("HVD_COMPRESS_THREADS")
    if own is not None:
        if not own.isdecimal() or int(own) < 1:
            raise ValueError(f"HVD_COMPRESS_THREADS must be a number >= 1, got {own!r}")
        return int(own)
    shared = environment.get("OMP_NUM_THREADS", "")
    if shared.isdecimal() and int(shared) >= 1:
        return int(shared)
    ranks = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") or environment.get("HOROVOD_LOCAL_SIZE") or "1"
    return max(1, len(os.sched_getaffinity(0)) // max(1, int(ranks)))


def _load() -> Any:
    # The same variable leaves the extension out when the package is built.
    if os.environ.get("HVD_COMPRESS_NATIVE") == "0":
        return None
    try:
        from hvd_compress.native import _kernels  # type: ignore[attr-defined]
    except ImportError:
        return None
    # A wrong HVD_COMPRESS_ISA is better reported now than in the middle of a step.
    _kernels.isa()
    _kernels.set_threads(thread_count(os.environ))
    return _kernels


kernels: Any = _load()
"""The extension module, or None."""
