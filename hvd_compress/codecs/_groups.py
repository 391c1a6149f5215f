"""The entries of each width as bytes: JointSQ's payload after the header that all payloads have.

Three counts (uint32), base and step of each width (float32), then the indices of the three widths, then their codes,
then zeros up to the payload's size. A width without entries has zeros for base and step, and no bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from hvd_compress.codec import Array
from hvd_compress.codecs._budget import HEADER, WIDTHS, Budget, used_nbytes
from hvd_compress.generator import MASK
from hvd_compress.indices import decode_indices, encode_indices, index_nbytes
from hvd_compress.ops.kernels import Kernels

__all__ = ["COMMON", "Group", "entries_of", "read_groups", "write_groups"]

COMMON = 4
"""Bytes of the header that all payloads have."""
_COUNTS = 12


class Group(NamedTuple):
    """The entries of one width: rising indices, base and step, codes (sign, number of the level)."""

    indices: Array
    line: Array
    codes: Array


def entries_of(ops: Kernels, groups: Sequence[Group]) -> list[Array]:
    """Indices and float32 values of each group, one after the other."""
    entries = []
    for group, width in zip(groups, WIDTHS, strict=True):
        entries += [group.indices, ops.code_values(group.codes, group.line, 2 ** (width - 1) - 1)]
    return entries


def write_groups(ops: Kernels, groups: Sequence[Group], budget: Budget) -> Array:
    """Bytes of the groups, one for each width."""
    kept = [ops.shape(group.indices)[0] for group in groups]
    filling = budget.nbytes - used_nbytes(budget.numel, kept) if budget.fixed else 0
    sections = [encode_indices(ops, group.indices, budget.numel, k) for group, k in zip(groups, kept, strict=True)]
    for group, width in zip(groups, WIDTHS, strict=True):
        sections.append(ops.pack_bits(group.codes, width))
    return ops.concat(
        [
            ops.constant(struct.pack("<3I", *kept), "uint8"),
            ops.to_bytes(ops.concat([group.line for group in groups])),
            *sections,
            ops.zeros(filling, "uint8"),
        ]
    )


def read_groups(ops: Kernels, body: Array, budget: Budget) -> list[Array]:
    """Undo `write_groups`, to what `entries_of` returns.

    Raises
    ------
    ValueError
        If the bytes cannot have come from `write_groups`.
    """
    kept, lines = _read_header(ops, body, budget)
    start = HEADER - COMMON
    all_indices, entries = [], []
    for k in kept:
        stop = start + index_nbytes(budget.numel, k)
        all_indices.append(decode_indices(ops, body[start:stop], budget.numel, k))
        start = stop
    if sum(k > 0 for k in kept) > 1:
        ops.require(ops.are_distinct(all_indices, budget.numel), "payload: an index occurs twice")
    for indices, line, width, k in zip(all_indices, lines, WIDTHS, kept, strict=True):
        stop = start + (k * width + 7) // 8
        entries += [indices, ops.unpack_values(body[start:stop], width, k, line)]
        start = stop
    ops.require(ops.all(body[start:] == 0), "payload: the filling is not zero")
    return entries


def _read_header(ops: Kernels, body: Array, budget: Budget) -> tuple[list[int], list[Array]]:
    """Counts, and base and step of each width."""
    length = ops.shape(body)[0] + COMMON
    ops.require(length >= HEADER, f"payload: {length} bytes, expected at least {HEADER}")
    kept = ops.to_list(ops.bit_and(ops.cast(ops.from_bytes(body[:_COUNTS], "int32"), "int64"), MASK))
    ops.require(sum(kept) <= budget.numel, f"payload: counts {kept} for {budget.numel} entries")
    nbytes = used_nbytes(budget.numel, kept)
    message = f"payload: counts {kept} stand for {nbytes} bytes, but there are {length}"
    ops.require(nbytes <= length if budget.fixed else nbytes == length, message)
    floats = ops.from_bytes(body[_COUNTS : HEADER - COMMON], "float32")
    ops.require(ops.all_finite(floats), "payload: a level is not finite")
    lines = [floats[2 * place : 2 * place + 2] for place in range(len(WIDTHS))]
    for k, line in zip(kept, lines, strict=True):
        ops.require(ops.all(line[1:] >= 0), "payload: a step is negative")
        ops.require(k > 0 or ops.all(line == 0), "payload: levels without entries")
    return kept, lines
