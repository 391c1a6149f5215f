"""GATHER payload <-> one row of bytes: header, sections, filling, seal.

A row is ``<BBH`` version, flags, 0, then the codec's counts as uint32, then its sections, filled with zeros to a
multiple of 8 bytes, then the 8-byte seal: a check word over the row so far, and the crc32 of codec, tensor name and
step, by which ranks notice that one of them is elsewhere. Rows of a codec whose sizes vary begin with the payload's
length as uint64. Everything is little-endian.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from hvd_compress.codec import Array, Codec
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.ops.rows import SEAL_NBYTES
from hvd_compress.payload import EMPTY, NONFINITE, NORMAL, Payload, TensorSpec
from hvd_compress.registry import config_of

__all__ = [
    "Layout",
    "add_payload",
    "flag_of",
    "layout_of",
    "open_usual",
    "pack",
    "row_nbytes",
    "seal",
    "sections_of",
    "split_rows",
    "tag_of",
    "unpack",
    "unseal",
]

VERSION = 1
_LENGTH = 8


class Layout(NamedTuple):
    """Where the bytes of one codec's normal payload of one tensor are.

    Attributes
    ----------
    row_nbytes : int
        Bytes that one rank hands to the allgather: payload, filling and seal; the most where sizes vary.
    head : bytes
        Version, flags and counts.
    counts : tuple of int
    parts : tuple of slice
        The sections of a row, where sizes are fixed.
    """

    row_nbytes: int
    head: bytes
    counts: tuple[int, ...]
    parts: tuple[slice, ...]


@lru_cache(maxsize=4096)
def layout_of(codec: Codec, spec: TensorSpec) -> Layout:
    """Layout of a GATHER codec's rows for one tensor."""
    counts, length = codec.counts(spec), 0 if codec.fixed_size else _LENGTH
    head = _head_of(NORMAL, counts)
    ends = list(accumulate(codec.part_nbytes(spec), initial=length + len(head)))
    parts = tuple(slice(start, end) for start, end in pairwise(ends))
    return Layout(-(-ends[-1] // 8) * 8 + SEAL_NBYTES, head, counts, parts)


def _head_of(flag: int, counts: tuple[int, ...]) -> bytes:
    return struct.pack(f"<BBH{len(counts)}I", VERSION, flag, 0, *counts)


def row_nbytes(codec: Codec, spec: TensorSpec) -> int:
    """Bytes that one rank hands to the allgather: payload, filling and seal; the most where sizes vary."""
    return layout_of(codec, spec).row_nbytes


def flag_of(ops: Kernels, values: Array) -> Array:
    """Flag of a payload by what was selected: `NONFINITE`, `EMPTY` (all zero, -0.0 too) or `NORMAL`; 0-d."""
    most = ops.magnitude_bits(ops.bucket_maxima(values, max(1, ops.shape(values)[0])))
    flag = ops.where(ops.all(ops.equal(most, 0)), EMPTY, NORMAL)
    return ops.where(ops.all(most < 0x7F800000), flag, NONFINITE)


def sections_of(ops: Kernels, payload: Payload) -> list[Array]:
    """Header and sections as uint8 arrays. Unless the flag is `NORMAL`, all bytes after the flag are zero."""

    def otherwise() -> list[Array]:
        flag = ops.reshape(ops.cast(payload.flag, "uint8"), (1,))
        head = ops.concat([ops.constant((VERSION,), "uint8"), flag, ops.zeros(2 + 4 * len(payload.counts), "uint8")])
        return [head, *(part * 0 for part in payload.parts)]

    def usual() -> list[Array]:
        return [ops.constant(_head_of(NORMAL, payload.counts), "uint8"), *payload.parts]

    return ops.cond(ops.equal(payload.flag, NORMAL), usual, otherwise)


def pack(ops: Kernels, payload: Payload) -> Array:
    """Header and sections as one uint8 array."""
    return ops.concat(sections_of(ops, payload))


def unpack(ops: Kernels, packed: Array, codec: Codec, spec: TensorSpec) -> Payload:
    """Undo `pack`.

    Raises
    ------
    ValueError
        Wrong length, version, flags or count.
    """
    length, most = ops.length(packed), codec.payload_nbytes(spec)
    if codec.fixed_size:
        message = ops.text("payload: {} bytes, expected {}", length, most)
        packed = ops.require(ops.equal(length, most), message, packed)
    else:
        least = most - codec.part_nbytes(spec)[-1]
        message = ops.text("payload: {} bytes, expected {} to {}", length, least, most)
        packed = ops.require((length >= least) & (length <= most), message, packed)
    flag, normal = packed[1], ops.equal(packed[1], NORMAL)
    ops.require(ops.equal(packed[0], VERSION), f"payload: unknown version, expected {VERSION}")
    ops.require(flag <= EMPTY, "payload: flags must be 0, 1 or 2")
    counts = codec.counts(spec)
    header = ops.constant(struct.pack(f"<H{len(counts)}I", 0, *counts), "uint8")
    start = 2 + ops.shape(header)[0]
    fits = ops.all(ops.equal(packed[2:start], ops.where(normal, header, 0)))
    ops.require(fits, "payload: header does not fit the tensor")
    parts = []
    for nbytes in codec.part_nbytes(spec):
        parts.append(packed[start : start + nbytes])
        start += nbytes
    return Payload(tuple(parts), flag, counts)


def add_payload(ops: Kernels, codec: Codec, total: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
    """Add what a received payload says, by its flag, to float32 `total`, which may be overwritten."""
    return ops.branch(
        ops.equal(payload.flag, NORMAL),
        lambda: codec.add_decoded(ops, total, payload, spec, site),
        lambda: ops.branch(ops.equal(payload.flag, EMPTY), lambda: total, lambda: total + float("nan")),
    )


def tag_of(codec: Codec, site: Site) -> int:
    """crc32 of codec, tensor name and step."""
    return zlib.crc32(struct.pack("<Q", site.step), _tag_of(codec, site.name))


@lru_cache(maxsize=4096)
def _tag_of(codec: Codec, name: str) -> int:
    return zlib.crc32(json.dumps([config_of(codec), name], sort_keys=True).encode("utf-8"))


def seal(ops: Kernels, sections: Sequence[Array], tag: int, fixed_size: bool = True) -> Array:
    """Make a row of the sections of a packed payload."""
    if not fixed_size:
        length = sum(ops.length(section) for section in sections)
        sections = [ops.to_bytes(ops.constant((length,), "int64")), *sections]
    return ops.seal_row(sections, tag)


def split_rows(ops: Kernels, gathered: Array, codec: Codec, spec: TensorSpec, world_size: int) -> list[Array]:
    """Split what an allgather returned into the ranks' rows.

    Raises
    ------
    ValueError
        If the length does not fit, because ranks sent different ones or a length was damaged.
    """
    length, start, rows = ops.length(gathered), 0, []
    template = "{} bytes from {} ranks do not fit their payloads: their settings differ"
    message = ops.text(template, length, world_size)
    if codec.fixed_size:
        nbytes = row_nbytes(codec, spec)
        gathered = ops.require(ops.equal(length, world_size * nbytes), message, gathered)
        gathered = ops.with_length(gathered, world_size * nbytes)
        return [gathered[nbytes * rank : nbytes * (rank + 1)] for rank in range(world_size)]
    for _ in range(world_size):
        gathered = ops.require(start + _LENGTH <= length, message, gathered)
        payload = ops.integer(ops.from_bytes(gathered[start : start + _LENGTH], "int64"))
        possible = (payload >= 0) & (payload <= codec.payload_nbytes(spec))
        payload = ops.require(possible, "payload was damaged on the way", payload)
        nbytes = _LENGTH + (payload + 7) // 8 * 8 + SEAL_NBYTES
        rows.append(gathered[start : start + nbytes])
        start = start + nbytes
    ops.require(ops.equal(start, length), message)
    return rows


def open_usual(ops: Kernels, gathered: Array, layout: Layout, world_size: int, tag: int) -> list[Payload] | None:
    """Payloads of the ranks' rows, if a quick look shows that all are whole, normal and of fixed size."""
    nbytes, head, counts, parts = layout
    if not ops.rows_fit(gathered, world_size, nbytes, head, tag):
        return None
    rows = [gathered[nbytes * rank : nbytes * (rank + 1)] for rank in range(world_size)]
    return [Payload(tuple([row[part] for part in parts]), NORMAL, counts) for row in rows]


def unseal(ops: Kernels, row: Array, codec: Codec, spec: TensorSpec, tag: int) -> Array:
    """Check one rank's row and return the packed payload.

    Raises
    ------
    ValueError
        If the bytes were damaged, or the sender was at another tensor, step or codec.
    """
    intact, same = ops.seal_fits(row, tag)
    body = ops.require(intact, "payload was damaged on the way", row[:-SEAL_NBYTES])
    body = ops.require(same, "payload is of another step, tensor or codec: the ranks are out of step", body)
    if codec.fixed_size:
        return body[: codec.payload_nbytes(spec)]
    return body[_LENGTH : _LENGTH + ops.integer(ops.from_bytes(body[:_LENGTH], "int64"))]
