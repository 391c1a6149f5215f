"""What crosses the wire for one tensor, and the tensor that it is about."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hvd_compress.ops.kernels import Kernels

__all__ = ["EMPTY", "FLOAT_DTYPES", "NONFINITE", "NORMAL", "Addends", "Payload", "TensorSpec"]

Array = Any

FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")

NORMAL, NONFINITE, EMPTY = 0, 1, 2
"""Flags of a payload: as usual; the input held inf or NaN; there is nothing to send."""


class TensorSpec(NamedTuple):
    """Shape and dtype name of a gradient; everything that sizes may depend on."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense gradient."""
        return self.numel * {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[self.dtype]


class Payload(NamedTuple):
    """What crosses the wire, and how to read it.

    Attributes
    ----------
    parts : tuple of arrays
        GATHER: 1-D uint8 sections in wire order, without the header. SUM: one 1-D float array. TWO_PHASE: one 1-D
        array, with its sum the second phase's, float32.
    flag : 0-d array, optional
        `NORMAL`, `NONFINITE` or `EMPTY`. None in a SUM payload that shows by itself that it is not finite.
    counts : tuple of int
        The header's counts (GATHER only).
    kept : array, optional
        What this rank selected, or it decoded. Never sent: it saves the error feedback from decoding it again.
    magnitudes : array, optional
        Counts by :func:`hvd_compress.budget.count_magnitudes`, when the model's budget is about to be shared.
    entries : int or 0-d array, optional
        How many entries of the gradient it holds, where `kept` does not show it. Never sent.
    source : array, optional
        What this rank needs besides when the sum is there: TWO_PHASE: the float32 vector that was compressed. SUM: what
        `decode` puts it together with. Never sent.
    """

    parts: tuple[Array, ...]
    flag: Any = None
    counts: tuple[int, ...] = ()
    kept: Array = None
    magnitudes: Array = None
    entries: Any = None
    source: Array = None

    def kept_entries(self, ops: Kernels, numel: int) -> Any:
        """How many of a gradient's `numel` entries it holds; a 0-d array where only the device knows."""
        if self.entries is not None:
            return self.entries
        if self.kept is None:
            return numel
        # Of several groups, the indices come before the values of each.
        groups = self.kept[::2] if isinstance(self.kept, tuple) else (self.kept,)
        return sum(ops.length(indices) for indices in groups)


class Addends(NamedTuple):
    """The sum ``x + decay * residual`` of float32 arrays, each product and sum rounded.

    It may overwrite `out`; if that is `residual` itself, then only where every sum is finite.
    """

    x: Array
    residual: Array
    decay: float
    out: Array | None = None
