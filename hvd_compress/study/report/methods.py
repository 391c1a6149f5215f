"""What a config string says about a method: its name, how it differs from its usual form, how strong it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hvd_compress.policy import wrapper_parameters
from hvd_compress.registry import parse_config

__all__ = ["COUNTED", "ORDER", "SPARSIFIERS", "UNCORRECTED", "Method", "config_of", "counted_ratio", "method_of"]

_NAMES = {
    "none": "dense",
    "topk": "top-k",
    "dgc": "DGC",
    "qsgd": "QSGD",
    "topk_qsgd": "top-k + QSGD",
    "jointsq": "JointSQ",
    "randomk": "random-k",
}
ORDER = tuple(_NAMES)
SPARSIFIERS = ("topk", "dgc", "randomk")

UNCORRECTED, COUNTED = "without residual", "codes counted"
"""Variants: what is not sent is lost; a budget pays for codes alone, as JointSQ's authors count."""


@dataclass(frozen=True)
class Method:
    """A codec in its usual form, or in another.

    Parameters
    ----------
    codec : str
        "none" for dense training.
    variant : str
        `UNCORRECTED`, `COUNTED` or "".
    """

    codec: str
    variant: str = ""

    @property
    def label(self) -> str:
        """What people call it."""
        name = _NAMES.get(self.codec, self.codec)
        return f"{name}, {self.variant}" if self.variant == COUNTED else f"{name} {self.variant}".strip()

    @property
    def rank(self) -> tuple[int, str, str]:
        """Its place among other methods."""
        return (ORDER.index(self.codec) if self.codec in ORDER else len(ORDER), self.codec, self.variant)


@cache
def config_of(compression: str) -> Mapping[str, Any]:
    """The parameters that a config string names; of a codec that is not registered here its name alone."""
    try:
        return parse_config(compression, wrapper_parameters())
    except ValueError:
        return {"name": compression.partition(":")[0].strip()}


def method_of(compression: str) -> Method:
    """The method that a config string stands for.

    Examples
    --------
    >>> method_of("randomk:density=0.01,error_feedback=false").label
    'random-k without residual'
    """
    config = config_of(compression)
    if config.get("error_feedback") is False:
        return Method(config["name"], UNCORRECTED)
    return Method(config["name"], COUNTED if config.get("accounting") == "values" else "")


def counted_ratio(compression: str) -> float:
    """The compression ratio as the two papers count it; NaN for what is in neither.

    The study of language models charges 64 bits for each entry of a sparsifier and log2(levels) + 1 bits for each of
    QSGD's; JointSQ's authors charge the bits of the codes alone.

    Examples
    --------
    >>> [counted_ratio(c) for c in ("topk:density=0.01", "qsgd:levels=16")]
    [50.0, 6.4]
    >>> counted_ratio("jointsq:bits_per_entry=0.032,accounting=values")
    1000.0
    """
    config = config_of(compression)
    if config["name"] in SPARSIFIERS and "density" in config:
        return 0.5 / float(config["density"])
    if config["name"] == "qsgd" and "levels" in config:
        return 32 / (math.log2(config["levels"]) + 1)
    if config.get("accounting") == "values" and "bits_per_entry" in config:
        return 32 / float(config["bits_per_entry"])
    return math.nan
