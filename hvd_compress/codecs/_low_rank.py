"""What the codecs of low rank share: the gradient as a matrix, and factors to begin with."""

from __future__ import annotations

from hvd_compress.codec import Array
from hvd_compress.generator import BASIS, Site, generator_key
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import TensorSpec

__all__ = ["begun", "sizes"]


def sizes(spec: TensorSpec, rank: int) -> tuple[int, int, int]:
    """Rows and columns of the matrix that a tensor is, and the rank that it gets.

    Examples
    --------
    >>> sizes(TensorSpec((30, 4, 10), "float32"), 64)
    (30, 40, 30)
    """
    rows = spec.shape[0] if len(spec.shape) > 1 and spec.numel else spec.numel
    columns = spec.numel // rows if rows else 1
    return rows, columns, min(rank, rows, columns)


def begun(ops: Kernels, factor: Array, seed: int, site: Site) -> Array:
    """A factor whose columns of zeros are random numbers instead, equal on all ranks."""
    live = ops.max(ops.reshape(ops.magnitude_bits(ops.flatten(factor)), ops.shape(factor)), 0) > 0

    def drawn() -> Array:
        rows, rank = ops.shape(factor)
        draws = ops.gaussian(rows * rank, generator_key(seed, site, BASIS))
        return ops.where(live, factor, ops.reshape(draws, (rows, rank)))

    return ops.cond(ops.all(live), lambda: factor, drawn)
