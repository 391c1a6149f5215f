"""The command line: a parser, and the modules that it hands over to.

A command is one module of this package, listed in `COMMANDS`: its docstring is the help text, ``add_arguments(parser)``
declares what it takes and ``run(arguments)`` does the work and returns the exit status. Commands import what is slow to
import, or may be missing, when they run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from hvd_compress import __version__
from hvd_compress.cli import bench, compare, decode, encode, info, study, timeline
from hvd_compress.cli import list as list_
from hvd_compress.cli.tensors import CommandFailed

__all__ = ["COMMANDS", "Command", "main"]

PROGRAM = "python -m hvd_compress"


class Command(Protocol):
    """What a module must have to be a command."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do the work; return the exit status."""


COMMANDS: dict[str, Command] = {
    "info": info,
    "list": list_,
    "encode": encode,
    "decode": decode,
    "compare": compare,
    "bench": bench,
    "timeline": timeline,
    "study": study,
}


class _Parser(argparse.ArgumentParser):
    """A parser that answers wrong usage with one sentence, not with the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Gradient compression for unmodified Horovod.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"hvd_compress {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        text = (command.__doc__ or "").strip()
        added = commands.add_parser(name, help=text.partition("\n")[0], description=text, allow_abbrev=False)
        command.add_arguments(added)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrong usage (raised as SystemExit)."""
    arguments = _parser().parse_args(argv)
    try:
        status = COMMANDS[arguments.command].run(arguments)
        sys.stdout.flush()
    except CommandFailed as error:
        print(f"{PROGRAM} {arguments.command}: error: {error}", file=sys.stderr)
        return error.status
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        print(
            f"{PROGRAM}: error: tables need rich: pip install 'hvd_compress[cli]', or ask for --json", file=sys.stderr
        )
        return 1
    except BrokenPipeError:
        # The reader, such as head, has seen enough; Python would complain about it once more while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
