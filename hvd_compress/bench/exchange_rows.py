"""What is measured of an exchange, and under which names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["METHODS", "ROWS_FILE", "Row", "as_json", "bits_per_second", "config_of_method", "load", "save"]

METHODS = {
    "dense": "none",
    "fp16": "fp16",
    "cast": "cast",
    "qsgd8": "qsgd:bits=8",
    "qsgd4": "qsgd:bits=4",
    "topk": "topk:density=0.01",
    "randomk": "randomk:density=0.01",
    "topk_qsgd": "topk_qsgd:density=0.01",
    "jointsq": "jointsq:bits_per_entry=0.32",
    "dgc": "dgc:density=0.001",
}
"""What is measured by default: codecs with a usual setting, beside Horovod's own `dense` and `fp16`."""

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
ROWS_FILE = "rows.json"


@dataclass(frozen=True)
class Row:
    """One method on one network.

    Attributes
    ----------
    method : str
        Name out of `METHODS`, or a config string.
    hosts : int
        Hosts that took part.
    rate : str
        Speed of their links, such as ``1gbit`` or ``unlimited``.
    n, tensors : int
        Entries of the gradient; into how many tensors they are divided.
    exchange_ms : float
        From the first `compress` to the end of the optimizer's ``synchronize``, on the slowest rank: the median.
    encode_ms, wait_ms, decode_ms : float
        Its parts on that rank in that step.
    payload_bytes : int
        What one rank hands to Horovod in a step.
    """

    method: str
    hosts: int
    rate: str
    n: int
    tensors: int
    exchange_ms: float
    encode_ms: float
    wait_ms: float
    decode_ms: float
    payload_bytes: int


def bits_per_second(rate: str) -> float | None:
    """Speed of links, None where they are not limited or the speed is not known.

    Examples
    --------
    >>> bits_per_second("2.5gbit"), bits_per_second("unlimited")
    (2500000000.0, None)
    """
    match = re.fullmatch(rf"([\d.]+)({'|'.join(UNITS)})", rate)
    return float(match[1]) * UNITS[match[2]] if match else None


def config_of_method(method: str) -> str:
    """Config string of a method's name; a config string stands for itself."""
    return METHODS.get(method, method)


def as_json(rows: Iterable[Row]) -> str:
    """Rows as a JSON list."""
    return json.dumps([asdict(row) for row in rows], indent=1)


def save(rows: Iterable[Row], path: Path) -> None:
    """Write rows to a file that is whole at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(as_json(rows) + "\n")
    unfinished.replace(path)


def load(path: Path) -> list[Row]:
    """Read what `save` wrote.

    Raises
    ------
    OSError, ValueError
        If the file cannot be read; if it holds no rows.
    """
    try:
        return [Row(**row) for row in json.loads(path.read_text())]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no rows of bench_exchange: {error}") from error
