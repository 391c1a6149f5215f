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

from hvd_compress.codec import EMPTY, NONFINITE, NORMAL, Array, Codec, Payload, TensorSpec
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.registry import config_of

__all__ = [
    "add_payload",
    "flag_of",
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
_SEAL = 8
_LENGTH = 8


def row_nbytes(codec: Codec, spec: TensorSpec) -> int:
    """Bytes that one rank hands to the allgather: payload, filling and seal; the most where sizes vary."""
    length = 0 if codec.fixed_size else _LENGTH
    return length + -(-codec.payload_nbytes(spec) // 8) * 8 + _SEAL


def flag_of(ops: Kernels, values: Array) -> Array:
    """Flag of a payload by what was selected: `NONFINITE`, `EMPTY` (all zero, -0.0 too) or `NORMAL`; 0-d."""
    most = ops.magnitude_bits(ops.bucket_maxima(values, max(1, ops.shape(values)[0])))
    flag = ops.where(ops.all(ops.equal(most, 0)), EMPTY, NORMAL)
    return ops.where(ops.all(most < 0x7F800000), flag, NONFINITE)


def sections_of(ops: Kernels, payload: Payload) -> list[Array]:
    """Header and sections as uint8 arrays. Unless the flag is `NORMAL`, all bytes after the flag are zero."""
    header = struct.pack(f"<H{len(payload.counts)}I", 0, *payload.counts)
    flag = ops.reshape(ops.cast(payload.flag, "uint8"), (1,))
    rest = [ops.constant(header, "uint8"), *payload.parts]
    rest = ops.cond(ops.equal(payload.flag, NORMAL), lambda: rest, lambda: [part * 0 for part in rest])
    return [ops.constant((VERSION,), "uint8"), flag, *rest]


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
    return ops.cond(
        ops.equal(payload.flag, NORMAL),
        lambda: codec.add_decoded(ops, total, payload, spec, site),
        lambda: ops.cond(ops.equal(payload.flag, EMPTY), lambda: total, lambda: total + float("nan")),
    )


def tag_of(codec: Codec, site: Site) -> int:
    """crc32 of codec, tensor name and step."""
    return zlib.crc32(struct.pack("<Q", site.step), _tag_of(codec, site.name))


@lru_cache(maxsize=4096)
def _tag_of(codec: Codec, name: str) -> int:
    return zlib.crc32(json.dumps([config_of(codec), name], sort_keys=True).encode("utf-8"))


def seal(ops: Kernels, sections: Sequence[Array], tag: int, fixed_size: bool = True) -> Array:
    """Make a row of the sections of a packed payload."""
    length = sum(ops.length(section) for section in sections)
    parts = [*sections, ops.zeros(-length % 8 + _SEAL, "uint8")]
    if not fixed_size:
        parts.insert(0, ops.to_bytes(ops.constant((length,), "int64")))
    row = ops.concat(parts)
    # In place, because a payload can be large.
    end = ops.arange(_SEAL) + (ops.length(row) - _SEAL)
    return ops.put(row, end, _seal_of(ops, row[:-_SEAL], tag))


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
        nbytes = _LENGTH + (payload + 7) // 8 * 8 + _SEAL
        rows.append(gathered[start : start + nbytes])
        start = start + nbytes
    ops.require(ops.equal(start, length), message)
    return rows


def unseal(ops: Kernels, row: Array, codec: Codec, spec: TensorSpec, tag: int) -> Array:
    """Check one rank's row and return the packed payload.

    Raises
    ------
    ValueError
        If the bytes were damaged, or the sender was at another tensor, step or codec.
    """
    body, sealed = row[:-_SEAL], row[-_SEAL:]
    expected = _seal_of(ops, body, tag)
    body = ops.require(ops.all(ops.equal(sealed[:4], expected[:4])), "payload was damaged on the way", body)
    message = "payload is of another step, tensor or codec: the ranks are out of step"
    body = ops.require(ops.all(ops.equal(sealed[4:], expected[4:])), message, body)
    if codec.fixed_size:
        return body[: codec.payload_nbytes(spec)]
    return body[_LENGTH : _LENGTH + ops.integer(ops.from_bytes(body[:_LENGTH], "int64"))]


def _seal_of(ops: Kernels, filled: Array, tag: int) -> Array:
    check = ops.reshape(ops.check_word(ops.from_bytes(filled, "int32")), (1,))
    return ops.to_bytes(ops.cast(ops.concat([check, ops.constant((tag,), "int64")]), "int32"))
