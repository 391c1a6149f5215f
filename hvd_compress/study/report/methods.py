"""The methods as reports show them: what people call them, their order, and how the papers count their bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from hvd_compress.policy import wrapper_parameters
from hvd_compress.registry import codec_class, codec_names, parse_config

__all__ = ["COUNTED", "SPARSIFIERS", "UNCORRECTED", "config_of", "counted_ratio", "density_of", "label_of", "rank_of"]

SPARSIFIERS = ("topk", "dgc", "randomk")
UNCORRECTED, COUNTED = "randomk-no-residual", "jointsq-values"
"""What is not sent is lost; a budget pays for codes alone, as JointSQ's authors count."""

_LABELS = {
    "none": "dense",
    "topk": "top-k",
    "dgc": "DGC",
    "qsgd": "QSGD",
    "topk_qsgd": "top-k + QSGD",
    "jointsq": "JointSQ",
    COUNTED: "JointSQ, codes counted",
    "randomk": "random-k",
    UNCORRECTED: "random-k without residual",
}


def label_of(method: str) -> str:
    """What people call a method; a codec that no preset has goes by the name of its class, which is its paper's.

    >>> label_of("topk"), label_of("powersgd"), label_of("of another version")
    ('top-k', 'PowerSGD', 'of another version')
    """
    own = codec_class(method).__name__ if method in codec_names() else method
    return _LABELS.get(method, own)


def rank_of(method: str) -> tuple[int, str]:
    """A method's place among the others."""
    return (list(_LABELS).index(method) if method in _LABELS else len(_LABELS), method)


@cache
def config_of(compression: str) -> Mapping[str, Any]:
    """The parameters that a config string names; of a codec that is not registered here its name alone."""
    try:
        return parse_config(compression, wrapper_parameters())
    except ValueError:
        return {"name": compression.partition(":")[0].strip()}


def density_of(compression: str) -> float | None:
    """The fraction of entries sent, by default or as a config string says; None where the codec has none.

    >>> density_of("topk"), density_of("topk:density=0.1"), density_of("onebit")
    (0.01, 0.1, None)
    """
    config = config_of(compression)
    default = getattr(codec_class(config["name"]), "density", None) if config["name"] in codec_names() else None
    density: float | None = config.get("density", default)
    return density


def counted_ratio(compression: str) -> float:
    """The compression ratio as the two papers count it; NaN for what is in neither.

    The study of language models charges 64 bits for each entry of a sparsifier and log2(levels) + 1 bits for each of
    QSGD's; JointSQ's authors charge the bits of the codes alone.

    Examples
    --------
    >>> [counted_ratio(config) for config in ("topk:density=0.01", "qsgd:levels=16")]
    [50.0, 6.4]
    >>> counted_ratio("jointsq:bits_per_entry=0.032,accounting=values")
    1000.0
    """
    config = config_of(compression)
    density = density_of(compression)
    if config["name"] in SPARSIFIERS and density is not None:
        return 0.5 / density
    if config["name"] == "qsgd" and "levels" in config:
        return 32 / (math.log2(config["levels"]) + 1)
    if config.get("accounting") == "values" and "bits_per_entry" in config:
        return 32 / float(config["bits_per_entry"])
    return math.nan
