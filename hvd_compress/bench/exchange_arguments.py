"""The arguments of ``scripts/bench_exchange.py``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from hvd_compress.bench.exchange_rows import METHODS, bits_per_second, config_of_method
from hvd_compress.policy import compose_config
from hvd_compress.registry import split_configs
from hvd_compress.study.command import Parser
from hvd_compress.study.errors import UsageError

__all__ = ["parse", "parser"]

T = TypeVar("T")

HOSTS = [2, 4]
RATES = ["100mbit", "1gbit", "unlimited"]
OWN_NETWORK = "own"
"""Rate of a job's network unless the user names it."""


def parse(argv: Sequence[str] | None, job: bool) -> argparse.Namespace:
    """Parse arguments, of a rank of a job or of a process by itself, and make the folder for results.

    Raises
    ------
    UsageError
        If they cannot work.
    """
    arguments = parser().parse_args(argv)
    if job and arguments.hosts:
        raise UsageError("--hosts must not be given in a job, which has its own")
    if job and arguments.rates and len(arguments.rates) > 1:
        raise UsageError("--rates must be one name in a job, that of its network")
    for rate in [] if job else arguments.rates or []:
        if rate != "unlimited" and not bits_per_second(rate):
            raise UsageError(f"--rates must be like 100mbit or 1gbit, or unlimited, got {rate!r}")
    arguments.hosts = arguments.hosts or HOSTS
    arguments.rates = arguments.rates or ([OWN_NETWORK] if job else RATES)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {arguments.out}: {error.strerror}; choose another --out") from error
    return arguments


def parser() -> argparse.ArgumentParser:
    """Arguments of the script."""
    parser = Parser(
        prog="bench_exchange",
        description="Seconds that Horovod takes to exchange a gradient, dense and compressed, on links of several "
        "speeds. Started by itself, as root, it makes hosts with scripts/cluster.sh; started by mpirun or horovodrun "
        "it measures in that job.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--methods",
        type=listed(method, split_configs),
        default=list(METHODS),
        metavar="LIST",
        help=f"some of {', '.join(METHODS)}, or config strings such as topk:density=0.05 (default: all of these)",
    )
    parser.add_argument("--hosts", type=listed(hosts), metavar="LIST", help="numbers of hosts (default: 2,4)")
    parser.add_argument(
        "--rates",
        type=listed(str),
        metavar="LIST",
        help="speeds of the links (default: 100mbit,1gbit,unlimited); in a job the name of its network",
    )
    # horovodrun takes an --n among the arguments of what it starts for one of its own.
    names, text = ("--n", "--entries"), "entries of a single tensor (default: %(default)s)"
    parser.add_argument(*names, dest="n", type=entries, default="25.6e6", metavar="N", help=text)
    parser.add_argument(
        "--tensors",
        type=listed(tensors),
        default="1,161",
        metavar="LIST",
        help="1, 161 (ResNet-50's) or both, as by default",
    )
    parser.add_argument("--steps", type=at_least_one, default=7, help="repetitions, fewer where slow (default: 7)")
    parser.add_argument("--json", action="store_true", help="print the rows as a JSON list instead")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/exchange"),
        metavar="DIR",
        help="for rows and picture (default: %(default)s)",
    )
    parser.add_argument("--from", type=Path, dest="source", metavar="FILE", help="show these rows, measure nothing")
    return parser


def listed(
    convert: Callable[[str], T], split: Callable[[str], list[str]] = lambda text: text.split(",")
) -> Callable[[str], list[T]]:
    """A converter of values with commas between them."""

    def convert_all(text: str) -> list[T]:
        return [convert(part) for part in split(text)]

    return convert_all


def method(text: str) -> str:
    """A name out of `METHODS` or a config string."""
    try:
        compose_config("none" if text == "fp16" else config_of_method(text))
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"must be some of {', '.join(METHODS)}, or config strings: {error}") from error
    return text


def hosts(text: str) -> int:
    """A number of hosts."""
    if not re.fullmatch(r"[1-9]\d?", text) or int(text) < 2:
        raise argparse.ArgumentTypeError(f"must be from 2 to 99, got {text!r}")
    return int(text)


def tensors(text: str) -> int:
    """A number of tensors that there is a gradient of."""
    if text not in ("1", "161"):
        raise argparse.ArgumentTypeError(f"must be 1 or 161, got {text!r}")
    return int(text)


def entries(text: str) -> int:
    """A number of entries, which may be written like 25.6e6."""
    return at_least_one(str(round(float(text))))


def at_least_one(text: str) -> int:
    """An integer from 1 on."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)
