"""Decompress what encode wrote into an .npy file.

Codec, name, step and seed must be those of encode; with other ones a sealed payload is refused. Payloads that are
summed, and raw ones, are only refused where their length or content cannot be right.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from hvd_compress.cli.output import add_json_option, print_json
from hvd_compress.cli.payloads import decode_bytes
from hvd_compress.cli.progress import working
from hvd_compress.cli.tensors import DTYPES, add_tensor_options, codec_of, naming, site_of
from hvd_compress.payload import TensorSpec
from hvd_compress.registry import config_of

__all__ = ["add_arguments", "run"]

_HINT = "; --codec, --shape, --dtype, --name, --step, --seed and --raw must be those of encode"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``decode``."""
    add_tensor_options(parser)
    parser.add_argument("--shape", required=True, type=_shape, help="the tensor's shape, such as 1000,1000")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of its entries (default: float32)")
    parser.add_argument("--input", required=True, type=Path, metavar="P.BIN", help="the payload")
    parser.add_argument("--output", required=True, type=Path, metavar="X.NPY", help="where the tensor goes")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the tensor and say what it is."""
    codec, site = codec_of(arguments), site_of(arguments)
    spec = TensorSpec(arguments.shape, arguments.dtype)
    with naming(arguments.input, _HINT), working(f"Decoding {spec.numel:,} entries"):
        data = arguments.input.read_bytes()
        start = time.perf_counter()
        array = decode_bytes(codec, data, spec, site, raw=arguments.raw)
        seconds = time.perf_counter() - start
    with naming(arguments.output), arguments.output.open("wb") as file:
        np.save(file, array)
    if arguments.json:
        print_json(
            {
                "codec": config_of(codec),
                "input": str(arguments.input),
                "nbytes": len(data),
                "output": str(arguments.output),
                "shape": spec.shape,
                "dtype": spec.dtype,
                "seconds": seconds,
            }
        )
        return 0
    print(
        f"{arguments.output}: {spec.dtype} of shape {spec.shape} from {len(data):,} bytes of {arguments.input}, "
        f"{codec.name} in {seconds:.3g} s"
    )
    return 0


def _shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"must be integers with commas between them, got {text!r}")
    return tuple(int(part) for part in parts)
