"""What the commands that work on one tensor share: their options, and files with sentences for what is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_compress.codec import Codec
from hvd_compress.generator import Site
from hvd_compress.parameters import parameters_of
from hvd_compress.policy import wrapper_parameters
from hvd_compress.registry import codec_class, codec_from_config, parse_config

__all__ = [
    "DTYPES",
    "CommandFailed",
    "add_tensor_options",
    "codec_of",
    "naming",
    "read_array",
    "site_of",
]

DTYPES = ("float16", "float32", "float64")
"""What an .npy file can hold of what a codec takes."""


class CommandFailed(Exception):
    """What a user has to know, in one sentence.

    Parameters
    ----------
    message : str
    status : int
        Exit status: 1 where something is wrong with files or the machine, 2 with the command.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def add_tensor_options(parser: argparse.ArgumentParser) -> None:
    """Declare which codec is used, and where a tensor stands in a training."""
    parser.add_argument(
        "--codec", required=True, type=_config, metavar="CONFIG", help="such as topk:density=0.01; see the command list"
    )
    parser.add_argument("--name", default="", help="the tensor's name (default: empty)")
    parser.add_argument("--step", default=0, type=_integer(64), help="the optimizer's step (default: 0)")
    parser.add_argument("--rank", default=0, type=_integer(32), help="the worker's rank (default: 0)")
    parser.add_argument("--seed", type=_integer(64), help="the codec's seed, if it draws at random")
    parser.add_argument("--raw", action="store_true", help="the payload without the seal, by which damage is noticed")


def codec_of(arguments: argparse.Namespace) -> Codec:
    """Return the codec that `add_tensor_options` asked for.

    Raises
    ------
    CommandFailed
        If two seeds were given.
    """
    codec = codec_from_config(arguments.codec)
    if arguments.seed is None or "seed" not in parameters_of(codec):
        return codec
    if "seed" in arguments.codec:
        raise CommandFailed("give the seed once: in --codec or as --seed", status=2)
    return replace(codec, seed=arguments.seed)  # type: ignore[type-var]  # Codecs are dataclasses, not their base.


def site_of(arguments: argparse.Namespace) -> Site:
    """Return the tensor's place in a training."""
    return Site(arguments.name, arguments.step, arguments.rank)


def _config(text: str) -> Mapping[str, Any]:
    """A config without wrappers, checked."""
    try:
        name = text.partition(":")[0].strip()
        if codec_class(name).wrapper:
            raise ValueError(f"{name} wraps another codec in a training; name that codec itself")
        config = parse_config(text, wrapper_parameters())
        for key in wrapper_parameters().keys() & config.keys():
            raise ValueError(
                f"leave out {key}: it is for the tensors of a training; here is one, without earlier steps"
            )
        codec_from_config(config)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return config


def _integer(bits: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) >> bits:
            raise argparse.ArgumentTypeError(f"must be an integer in [0, 2**{bits}), got {text!r}")
        return int(text)

    return convert


@contextmanager
def naming(path: Path, hint: str = "") -> Iterator[None]:
    """Say which file it is that is missing, full, or wrong inside."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandFailed(f"{path}: {' '.join(str(error).split())}{hint}") from error


def read_array(path: Path) -> NDArray[Any]:
    """Read a floating-point array from an .npy file, in the machine's byte order.

    Raises
    ------
    CommandFailed
        If there is none.
    """
    with naming(path, "; it must be an .npy file, as numpy.save writes"), path.open("rb") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if str(array.dtype) not in DTYPES:
        raise CommandFailed(f"{path}: entries are {array.dtype}, but must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}")
    return array
