"""Measure how long encoding and decoding take, by codec, tensor size and threads, or advise what would pay.

Each codec compresses one matrix step after step, as in a training: with error feedback where it usually has that, from
the gradient to the sealed bytes that would be sent, and back into a gradient. Times are also given as multiples of the
time in which one thread copies the gradient. select:largest, select:torch.topk and select:numpy.partition select the
largest entries by themselves.

With --advise: started on the ranks of a job, with mpirun or horovodrun, the link is measured there; elsewhere give
--link and --workers. The result is how long a training step takes with each codec, and whether that is faster than
without.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hvd_compress.bench import arguments as read
from hvd_compress.bench.encode import SIZES, is_landmark
from hvd_compress.cli.output import add_json_option
from hvd_compress.cli.tensors import CommandFailed

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``bench``."""
    sizes = f"{SIZES[0]:.0e} to {SIZES[-1]:.0e}".replace("+0", "")
    add = parser.add_argument
    add(
        "--n",
        # horovodrun takes an --n among the arguments of what it starts for one of its own.
        "--entries",
        dest="n",
        type=read.size_list,
        metavar="SIZES",
        help=f"entries of the tensors, such as 1e3,25.6e6 (default: {sizes}; with --advise 25.6e6, one tensor)",
    )
    add(
        "--codecs",
        nargs="+",
        type=read.config_list,
        metavar="CONFIG",
        help="such as topk:density=0.01 qsgd:bits=4 select:torch.topk,density=0.001 (default: one of each kind)",
    )
    add("--threads", type=read.count_list, metavar="COUNTS", help="such as 1,2, each on so many cores (default: 1)")
    add("--workers", type=read.positive, metavar="W", help="ranks whose payloads are decoded (default: 1)")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="where tensors are (default: cpu)")
    add(
        "--seconds",
        default=0.5,
        type=read.in_seconds(1.0, zero=False),
        metavar="S",
        help="time for each figure; three or five repetitions are made in any case (default: 0.5)",
    )
    add("--plot", type=Path, metavar="FILE", help="draw time against size into a .png, .svg or .pdf")
    add("--advise", action="store_true", help="say which codecs would make a training step faster")
    add(
        "--compute-ms",
        type=read.in_seconds(1e-3, zero=True),
        metavar="MS",
        help="with --advise: what a step takes you on one rank, without Horovod's optimizer (default: 0)",
    )
    add("--link", type=read.link_rate, metavar="RATE", help="with --advise outside of a job: such as 100mbit or 1gbit")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    arguments.codecs = [config for configs in arguments.codecs or [] for config in configs]
    if arguments.advise:
        for option in ("threads", "plot"):
            if getattr(arguments, option):
                raise CommandFailed(f"--{option} does not go with --advise, which measures a job as it is", status=2)
        if any(map(is_landmark, arguments.codecs)) or arguments.device != "cpu":
            raise CommandFailed("--advise takes codecs only, on the CPU: leave out select:... and --device", status=2)
        from hvd_compress.bench.advise_command import run_advise

        return run_advise(arguments)
    for option, value in (("--compute-ms", arguments.compute_ms), ("--link", arguments.link)):
        if value is not None:
            raise CommandFailed(f"{option} is for --advise", status=2)
    from hvd_compress.bench.bench_command import run_bench

    return run_bench(arguments)
