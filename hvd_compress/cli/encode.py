"""Compress one tensor from an .npy file into the bytes that a worker would send of it.

It is compressed as at the first step of a training: without momentum or a residual from earlier steps. The file is what
is handed to Horovod: a payload with a seal of 8 bytes by which decode notices damage, or, for codecs whose payloads are
summed (see the command list), the bytes of the summed array.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hvd_compress.cli.output import add_json_option, print_json
from hvd_compress.cli.payloads import encode_array
from hvd_compress.cli.progress import working
from hvd_compress.cli.tensors import CommandFailed, add_tensor_options, codec_of, naming, read_array, site_of
from hvd_compress.codec import Array
from hvd_compress.registry import config_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``encode``."""
    add_tensor_options(parser)
    parser.add_argument("--input", required=True, type=Path, metavar="X.NPY", help="the tensor")
    parser.add_argument("--output", required=True, type=Path, metavar="P.BIN", help="where the payload goes")
    parser.add_argument("--backend", default="numpy", choices=_CONVERT, help="what computes (default: numpy)")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the payload and say how large it is."""
    codec, site = codec_of(arguments), site_of(arguments)
    array = read_array(arguments.input)
    with working(f"Encoding {array.size:,} entries"):
        tensor = _converted(array, arguments.backend)
        start = time.perf_counter()
        data = encode_array(codec, tensor, site, raw=arguments.raw)
        seconds = time.perf_counter() - start
    with naming(arguments.output):
        arguments.output.write_bytes(data)
    ratio = array.nbytes / len(data) if data else None
    if arguments.json:
        print_json(
            {
                "codec": config_of(codec),
                "backend": arguments.backend,
                "input": str(arguments.input),
                "shape": array.shape,
                "dtype": str(array.dtype),
                "dense_nbytes": array.nbytes,
                "output": str(arguments.output),
                "nbytes": len(data),
                "compression_ratio": ratio,
                "seconds": seconds,
            }
        )
        return 0
    print(
        f"{arguments.output}: {len(data):,} bytes for {array.nbytes:,} of {arguments.input}, compression ratio "
        f"{'undefined' if ratio is None else f'{ratio:.4g}'}, {codec.name} on {arguments.backend} in {seconds:.3g} s"
    )
    return 0


def _converted(array: NDArray[Any], backend: str) -> Array:
    try:
        return _CONVERT[backend](array)
    except ModuleNotFoundError as error:
        if error.name != backend:
            raise
        raise CommandFailed(f"{backend} is not installed: pip install 'hvd_compress[{backend}]'") from error


def _to_torch(array: NDArray[Any]) -> Array:
    import torch

    return torch.from_numpy(array)


def _to_tensorflow(array: NDArray[Any]) -> Array:
    # What TensorFlow says while it starts would hide what this command says.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return tf.convert_to_tensor(array)


_CONVERT: dict[str, Callable[[NDArray[Any]], Array]] = {
    "numpy": lambda array: array,
    "torch": _to_torch,
    "tensorflow": _to_tensorflow,
}
