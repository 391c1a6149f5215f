"""Compressed allreduce of NumPy arrays over mpi4py: the core without a training framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

try:
    from mpi4py import MPI
except ImportError as error:
    raise ImportError(f"hvd_compress.mpi needs mpi4py ({error}): pip install 'hvd_compress[mpi]'") from error

from hvd_compress.codec import Codec
from hvd_compress.exchange import receive, send, spec_of
from hvd_compress.generator import Site
from hvd_compress.ops import ops_for

__all__ = ["allreduce"]

Array = np.ndarray[Any, Any]


def allreduce(
    array: Array,
    codec: Codec,
    comm: MPI.Comm = MPI.COMM_WORLD,
    *,
    name: str,
    op: str = "average",
    state: Mapping[str, Any] | None = None,
) -> tuple[Array, dict[str, Any]]:
    """Combine an array over all ranks, compressed.

    Parameters
    ----------
    array : numpy.ndarray
        Floating-point, of any shape; the same shape and dtype on every rank. Not modified.
    codec : Codec
        The same on every rank, for example ``ErrorFeedback(TopK(density=0.01))``.
    comm : mpi4py.MPI.Comm
        The ranks.
    name : str
        Keys the random draws; the same on every rank, another one for each array.
    op : str
        "average" or "sum".
    state : mapping, optional
        What the last call for this name returned; None at the first.

    Returns
    -------
    array : numpy.ndarray
        The combined array, equal on all ranks, in the shape and dtype of the input. Not finite if any rank's was not.
    state : dict
        Step number and this rank's residuals, for the next call; may be pickled.

    Raises
    ------
    TypeError
        If `array` is no floating-point NumPy array or `codec` no codec.
    ValueError
        If `op` or `name` is not allowed, or a payload was damaged or belongs elsewhere.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import TopK
    >>> from hvd_compress.mpi import allreduce
    >>> result, state = allreduce(np.float32([3, 1]), TopK(density=0.5), name="w")
    >>> result.tolist(), state["step"]
    ([3.0, 0.0], 1)
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"array must be a NumPy array, got {type(array).__name__}")
    if not isinstance(codec, Codec):
        raise TypeError(f"codec must be a codec, got {codec!r}")
    if op not in ("average", "sum"):
        raise ValueError(f"op must be 'average' or 'sum', got {op!r}")
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be a string that is not empty, got {name!r}")
    ops = ops_for(array)
    step, arrays = (0, codec.init(ops, spec_of(ops, array))) if state is None else (state["step"], state["arrays"])
    site, collective = Site(name, step, comm.rank, comm.size), _MpiCollective(comm)
    sent, pending, arrays = send(codec, ops, array, arrays, site, collective)
    reduced = _sum(sent, comm)
    if op == "average":
        with ops.quiet():
            reduced = reduced * reduced.dtype.type(1.0 / comm.size)
    result, arrays = receive(ops, reduced, pending, arrays, collective)
    return result, {"step": step + 1, "arrays": dict(arrays)}


class _MpiCollective:
    """mpi4py as the exchange sees it; what is gathered may differ in size between ranks."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def allgather(self, buffer: Array, name: str) -> Array:
        """Gather 1-D uint8 arrays."""
        sizes = np.empty(self._comm.size, np.int64)
        self._comm.Allgather(np.array([buffer.size], np.int64), sizes)
        gathered = np.empty(sizes.sum(), np.uint8)
        self._comm.Allgatherv(buffer, (gathered, sizes))
        return gathered

    def allreduce(self, array: Array, name: str) -> Array:
        """Add arrays over the ranks."""
        return _sum(array, self._comm)

    def wait(self, handle: Array) -> Array:
        """Return what came."""
        return handle


def _add_halves(left: Any, right: Any, datatype: MPI.Datatype) -> None:
    total = np.frombuffer(right, np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add(np.frombuffer(left, np.float16), total, out=total)


# MPI has no type for float16.
_SUM_HALVES = MPI.Op.Create(_add_halves, commute=True)


def _sum(sent: Array, comm: MPI.Comm) -> Array:
    values = np.ascontiguousarray(sent)
    total = np.empty_like(values)
    if values.dtype == np.float16:
        comm.Allreduce((values, MPI.UINT16_T), (total, MPI.UINT16_T), _SUM_HALVES)
    else:
        comm.Allreduce(values, total)
    return total
