"""GATHER payload <-> one row of bytes: header, sections, filling, seal.

A row is ``<BBH`` version, flags, 0, then the codec's counts as uint32, then its sections, filled with zeros to a
multiple of 8 bytes, then the 8-byte seal: a check word over the row so far, and the crc32 of codec, tensor name and
step, by which ranks notice that one of them is elsewhere. Everything is little-endian.
"""

from __future__ import annotations

import json
import struct
import zlib

from hvd_compress.codec import EMPTY, NONFINITE, NORMAL, Array, Codec, Payload, TensorSpec
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.registry import config_of

__all__ = ["add_payload", "flag_of", "pack", "row_nbytes", "seal", "tag_of", "unpack", "unseal"]

VERSION = 1
_SEAL = 8


def row_nbytes(codec: Codec, spec: TensorSpec) -> int:
    """Bytes that one rank hands to the allgather: payload, filling and seal."""
    return -(-codec.payload_nbytes(spec) // 8) * 8 + _SEAL


def flag_of(ops: Kernels, values: Array) -> Array:
    """Flag of a payload by what was selected: `NONFINITE`, `EMPTY` (all zero, -0.0 too) or `NORMAL`; 0-d."""
    bits = ops.magnitude_bits(values)
    return ops.where(ops.all(bits < 0x7F800000), ops.where(ops.all(bits == 0), EMPTY, NORMAL), NONFINITE)


def pack(ops: Kernels, payload: Payload) -> Array:
    """Header and sections as uint8. Unless the flag is `NORMAL`, all bytes after the flag are zero."""
    header = struct.pack(f"<H{len(payload.counts)}I", 0, *payload.counts)
    rest = ops.concat([ops.constant(header, "uint8"), *payload.parts])
    flag = ops.reshape(ops.cast(payload.flag, "uint8"), (1,))
    rest = ops.cast(ops.where(payload.flag == NORMAL, rest, 0), "uint8")
    return ops.concat([ops.constant((VERSION,), "uint8"), flag, rest])


def unpack(ops: Kernels, packed: Array, codec: Codec, spec: TensorSpec) -> Payload:
    """Undo `pack`.

    Raises
    ------
    ValueError
        Wrong length, version, flags or count.
    """
    length, expected = ops.shape(packed)[0], codec.payload_nbytes(spec)
    if length != expected:
        raise ValueError(f"payload: {length} bytes, expected {expected}")
    flag, normal = packed[1], packed[1] == NORMAL
    ops.require(packed[0] == VERSION, f"payload: unknown version, expected {VERSION}")
    ops.require(flag <= EMPTY, "payload: flags must be 0, 1 or 2")
    counts = codec.counts(spec)
    header = ops.constant(struct.pack(f"<H{len(counts)}I", 0, *counts), "uint8")
    start = 2 + ops.shape(header)[0]
    ops.require(ops.all(packed[2:start] == ops.where(normal, header, 0)), "payload: header does not fit the tensor")
    parts = []
    for nbytes in codec.part_nbytes(spec):
        parts.append(packed[start : start + nbytes])
        start += nbytes
    return Payload(tuple(parts), flag, counts)


def add_payload(ops: Kernels, codec: Codec, total: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
    """Add what a received payload says, by its flag, to float32 `total`, which may be overwritten."""
    return ops.cond(
        payload.flag == NORMAL,
        lambda: codec.add_decoded(ops, total, payload, spec, site),
        lambda: ops.cond(payload.flag == EMPTY, lambda: total, lambda: total + float("nan")),
    )


def tag_of(codec: Codec, site: Site) -> int:
    """crc32 of codec, tensor name and step."""
    words = json.dumps([config_of(codec), site.name], sort_keys=True).encode("utf-8")
    return zlib.crc32(struct.pack("<Q", site.step), zlib.crc32(words))


def seal(ops: Kernels, packed: Array, tag: int) -> Array:
    """Fill a packed payload to a multiple of 8 bytes and append the seal."""
    filled = ops.concat([packed, ops.zeros(-ops.shape(packed)[0] % 8, "uint8")])
    return ops.concat([filled, _seal_of(ops, filled, tag)])


def unseal(ops: Kernels, row: Array, payload_nbytes: int, tag: int) -> Array:
    """Check one rank's row and return the packed payload.

    Raises
    ------
    ValueError
        If the bytes were damaged, or the sender was at another tensor, step or codec.
    """
    body, sealed = row[:-_SEAL], row[-_SEAL:]
    expected = _seal_of(ops, body, tag)
    ops.require(ops.all(sealed[:4] == expected[:4]), "payload was damaged on the way")
    ops.require(
        ops.all(sealed[4:] == expected[4:]), "payload is of another step, tensor or codec: the ranks are out of step"
    )
    return body[:payload_nbytes]


def _seal_of(ops: Kernels, filled: Array, tag: int) -> Array:
    check = ops.reshape(ops.check_word(ops.from_bytes(filled, "int32")), (1,))
    return ops.to_bytes(ops.cast(ops.concat([check, ops.constant((tag,), "int64")]), "int32"))
