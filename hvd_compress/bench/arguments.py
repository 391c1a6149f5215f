"""Readers of the command's arguments: sizes, counts, codecs, rates."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from hvd_compress.bench.encode import is_landmark
from hvd_compress.bench.landmarks import parse_selection
from hvd_compress.bench.link import rate_of
from hvd_compress.policy import compose_config
from hvd_compress.registry import split_configs

__all__ = ["config_list", "count_list", "in_seconds", "link_rate", "positive", "size_list"]

_LARGEST = 2**32


def size_list(text: str) -> list[int]:
    """``25.6e6`` or ``1e3,1e6``: numbers of entries."""
    sizes = [float(word) if _is_number(word) else 0.0 for word in text.split(",")]
    for word, size in zip(text.split(","), sizes, strict=True):
        if not (size.is_integer() and 1 <= size < _LARGEST):
            raise argparse.ArgumentTypeError(f"must be whole numbers in [1, 2**32) such as 25.6e6, got {word!r}")
    return [int(size) for size in sizes]


def count_list(text: str) -> list[int]:
    """``1,2``: numbers from 1 on."""
    return [positive(word) for word in text.split(",")]


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


def in_seconds(unit: float, *, zero: bool) -> Callable[[str], float]:
    """A converter that takes numbers above zero, or from zero on, and gives seconds."""

    def convert(text: str) -> float:
        value = float(text) if _is_number(text) else -1.0
        if not (0.0 <= value < 1e9) or (value == 0.0 and not zero):
            raise argparse.ArgumentTypeError(f"must be a number {'>=' if zero else '>'} 0, got {text!r}")
        return value * unit

    return convert


def config_list(text: str) -> list[str]:
    """Configs of codecs and landmarks with commas between them."""
    configs = split_configs(text)
    for config in configs:
        try:
            if is_landmark(config):
                parse_selection(config)
            else:
                compose_config(config)
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return configs


def link_rate(text: str) -> float:
    """``1gbit``, ``100mbit``: bytes a second."""
    try:
        return rate_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
