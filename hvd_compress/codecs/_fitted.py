"""Buckets of kept entries on levels fitted to each bucket, as JointSQ fits them to its widths."""

from __future__ import annotations

from hvd_compress.codec import Array
from hvd_compress.codecs._fit_rows import fit_rows, rows_of
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import NONFINITE
from hvd_compress.wire import flag_of

__all__ = ["fitted_nbytes", "quantise_fitted", "restore_fitted"]

_ITERATIONS = 2


def fitted_nbytes(k: int, bits: int, size: int) -> tuple[int, int]:
    """Bytes of the lines (base and step of each bucket) and of the codes of k entries."""
    return 8 * -(-k // (size or max(1, k))), -(-k * bits // 8)


def quantise_fitted(ops: Kernels, values: Array, bits: int, size: int) -> tuple[tuple[Array, Array], Array]:
    """Sections (lines, codes) and flag of float32 `values`; buckets of `size` entries, 0 for one of all."""
    flag, k = flag_of(ops, values), ops.shape(values)[0]
    finite = ops.where(ops.equal(flag, NONFINITE), ops.zeros(1), values)
    sizes = fitted_nbytes(k, bits, size)
    outputs = [("uint8", (nbytes,)) for nbytes in sizes]
    lines, codes = ops.run_eagerly(lambda ops, x: _fit(ops, x, bits, size), (finite,), outputs)
    return (lines, codes), flag


def restore_fitted(ops: Kernels, parts: tuple[Array, ...], k: int, bits: int, size: int) -> Array:
    """Undo `quantise_fitted`; ``ValueError`` if the sections are damaged."""
    lines = ops.from_bytes(parts[0], "float32")
    ops.require(ops.all_finite(lines), "payload: a level is not finite")
    codes = ops.unpack_bits(parts[1], bits, k)
    last = 2 ** (bits - 1) - 1
    own = ops.arange(k) // (size or max(1, k)) * 2
    return ops.line_values(codes, ops.take(lines, own), ops.take(lines, own + 1), last)


def _fit(ops: Kernels, values: Array, bits: int, size: int) -> tuple[Array, Array]:
    k = ops.shape(values)[0]
    if k == 0:
        return ops.zeros(0, "uint8"), ops.zeros(0, "uint8")
    groups, own = rows_of(ops, values, size or k)
    lines, codes = fit_rows(ops, groups, bits, _ITERATIONS)
    return ops.to_bytes(ops.flatten(lines)), ops.pack_bits(ops.take(codes, own), bits)
