"""Ranks compare their settings before they exchange anything by them."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from hvd_compress import __version__
from hvd_compress.codec import CompressionError
from hvd_compress.collective import Collective
from hvd_compress.ops.kernels import Kernels

__all__ = ["agree"]

_SUMMARY = "<Q32s"
_CHECK = 4
_SHOWN = 300


def agree(ops: Kernels, collective: Collective, settings: Mapping[str, Any], name: str) -> None:
    """Compare settings over all ranks; every rank must call it.

    Parameters
    ----------
    settings : mapping
        JSON-ready; the package's version is compared, too.
    name : str
        Of the collective, equal on all ranks.

    Raises
    ------
    ValueError
        On every rank if two ranks differ; the message shows what is different, of both.
    CompressionError
        On a rank that received something damaged: it alone would wait for the others' settings.
    """
    text = json.dumps({"version": __version__, **settings}, sort_keys=True).encode("utf-8")
    summary = struct.pack(_SUMMARY, len(text), hashlib.sha256(text).digest())
    gathered = _gathered(ops, collective, summary + _check(summary), f"{name}.agreement")
    size = struct.calcsize(_SUMMARY)
    rows = [gathered[start : start + size + _CHECK] for start in range(0, len(gathered), size + _CHECK)]
    summaries = [row[:size] for row in rows]
    if any(row[size:] != _check(row[:size]) for row in rows):
        raise CompressionError(f"{name}: the ranks' comparison of their settings was damaged on the way")
    if len(set(summaries)) == 1:
        return
    longest = max(struct.unpack(_SUMMARY, one)[0] for one in summaries)
    texts = _gathered(ops, collective, text.ljust(longest), f"{name}.settings")
    all_settings = [json.loads(texts[start : start + longest]) for start in range(0, len(texts), longest)]
    other = next(rank for rank, one in enumerate(summaries) if one != summaries[0])
    first, second = all_settings[0], all_settings[other]
    different = sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))
    shown = "; ".join(f"{key}: {_difference(first.get(key), second.get(key), other)}" for key in different)
    raise ValueError(f"the ranks' settings differ: {shown}")


def _check(summary: bytes) -> bytes:
    return zlib.crc32(summary).to_bytes(_CHECK, "little")


def _gathered(ops: Kernels, collective: Collective, own: bytes, name: str) -> bytes:
    handle = collective.allgather(ops.constant(own, "uint8"), name)
    return bytes(ops.to_list(collective.wait(handle)))


def _difference(first: Any, second: Any, other: int) -> str:
    if isinstance(first, list) and isinstance(second, list):
        pairs = zip([*first, *[None] * len(second)], [*second, *[None] * len(first)], strict=False)
        first, second = next(pair for pair in pairs if pair[0] != pair[1])
    return f"rank 0 has {_short(first)}, rank {other} has {_short(second)}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
