"""Compare all codecs on one tensor at equal bytes: what they lose, and how long they take.

The parameters that set a codec's size are chosen so that its payload comes as close as possible to the size that is
asked for, but not above; where others are left to choose, such as the bits of a code, those that lose least. A codec
that cannot be so small appears at its smallest, and is marked. Each compresses the tensor as at the first step of a
training. "best fixed width" is top-k with values of 2, 3, 4, 5, 6, 8 (fitted), 16 or 32 bits, whichever loses least.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hvd_compress.cli.comparison import Choice, compare
from hvd_compress.cli.curves import check_plot, draw_curves
from hvd_compress.cli.output import add_json_option, console, print_json
from hvd_compress.cli.progress import tracked
from hvd_compress.cli.tensors import CommandFailed, read_array
from hvd_compress.codecs import JointSQ
from hvd_compress.parameters import parameters_of

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_arguments", "run"]

_CURVE = [2.0**power for power in range(-6, 4)]
"""Bits per entry at which a plot has points."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``compare``."""
    parser.add_argument("--input", required=True, type=Path, metavar="X.NPY", help="the tensor")
    parser.add_argument(
        "--bits-per-entry",
        default=JointSQ.bits_per_entry,
        type=_bits,
        metavar="BITS",
        help=f"size of a payload in bits for each entry of the tensor (default: {JointSQ.bits_per_entry})",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw error against bytes into a .png, .svg or .pdf")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    # Before the work, because what prints tables may be missing.
    out = None if arguments.json else console()
    x, bits = read_array(arguments.input), arguments.bits_per_entry
    if not np.isfinite(x).all():
        raise CommandFailed(f"{arguments.input}: an entry is inf or NaN, so that errors cannot be compared")
    if not x.any():
        raise CommandFailed(f"{arguments.input}: all entries are zero, so that there is no relative error")
    if arguments.plot:
        check_plot(arguments.plot)
    curve = _CURVE if arguments.plot else []
    sizes = [int(x.size * per_entry / 8) for per_entry in (bits, *curve)]
    at_size, *others = compare(x, sizes, lambda codecs: tracked(codecs, "Compressing"))
    title = f"{arguments.input}: {x.size:,} entries of {x.dtype}, {x.nbytes:,} bytes"
    if arguments.plot:
        draw_curves(arguments.plot, [choice for choices in (at_size, *others) for choice in choices], title)
    if out is None:
        print_json(
            {
                "input": str(arguments.input),
                "shape": x.shape,
                "dtype": str(x.dtype),
                "dense_nbytes": x.nbytes,
                "bits_per_entry": bits,
                "budget_nbytes": sizes[0],
                "methods": [choice.facts(x.nbytes) for choice in at_size],
            }
        )
    else:
        _print(out, at_size, x.nbytes, f"{title}; payloads of {sizes[0]:,} bytes ({bits:g} bits per entry)")
    return 0


def _bits(text: str) -> float:
    try:
        bits = float(text)
    except ValueError:
        bits = 0.0
    if not 0.0 < bits <= 32.0:
        raise argparse.ArgumentTypeError(f"must be a number in (0, 32], got {text!r}")
    return bits


def _print(out: Console, choices: Sequence[Choice], dense_nbytes: int, title: str) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column, width in (("method", 10), ("setting", 24)):
        table.add_column(column, overflow="fold", max_width=width)
    for column in ("bytes", "ratio", "error", "encode\nms", "decode\nms"):
        table.add_column(column, justify="right", no_wrap=True)
    for choice in sorted(choices, key=lambda choice: (not choice.within_budget, choice.measured.relative_error)):
        measured = choice.measured
        table.add_row(
            choice.method,
            _setting(choice),
            f"{measured.nbytes:,}{'' if choice.within_budget else ' *'}",
            f"{dense_nbytes / measured.nbytes:.1f}",
            f"{measured.relative_error:.4f}",
            f"{1e3 * measured.encode_seconds:.1f}",
            f"{1e3 * measured.decode_seconds:.1f}",
        )
    out.print(title, end="\n\n")
    out.print(table)
    out.print("\nratio: dense bytes / bytes. error: ||x - C(x)||^2 / ||x||^2.")
    if not all(choice.within_budget for choice in choices):
        out.print("* larger than asked: the smallest that it can be.")


def _setting(choice: Choice) -> str:
    """The knobs, and what else is not the default."""
    codec = choice.codec
    words = [] if codec.name == choice.method else [codec.name]
    for name, (_, declared) in parameters_of(codec).items():
        value = getattr(codec, name)
        if name in codec.knobs or value != declared.default:
            words.append(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}")
    return " ".join(words)
