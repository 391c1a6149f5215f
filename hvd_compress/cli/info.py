"""Show versions, array backends, Horovod's build flags, launchers and cores, and what of it does not work."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from hvd_compress.cli.facts import collect
from hvd_compress.cli.output import add_json_option, console, print_json
from hvd_compress.cli.probe import BUILD_FLAGS

__all__ = ["add_arguments", "run"]

_LAUNCHERS = {"mpi": "mpirun", "gloo": "horovodrun --gloo"}
_SPELLED = {"gloo": "Gloo", "rocm": "ROCm"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``info``."""
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what is installed here; status 0 whatever is missing."""
    if arguments.json:
        print_json(collect())
        return 0
    out = console()
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    with out.status("Looking at what is installed here"):
        for row in _rows(collect()):
            table.add_row(*row)
    out.print(table)
    return 0


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What is printed: section, item, and what there is to say."""
    yield "versions", "hvd_compress", facts["hvd_compress"]
    yield "", "Python", f"{facts['python']['version']}, {facts['python']['executable']}"
    for name, version in facts["packages"].items():
        yield "", name, version or "not installed"
    compiler = facts["compiler"]
    yield "", "C++ compiler", f"{compiler['command']}: {compiler['version']}" if compiler else "not found"
    yield "", "system", facts["platform"]
    for name, state in facts["backends"].items():
        yield "backends" if name == next(iter(facts["backends"])) else "", name, _state(state)
    native = facts["native_kernels"]
    built = native and "{instruction_set}, {threads} threads".format(**native)
    yield "", "native kernels", built or "not built: the frameworks' own operations are used"
    for name, state in facts["skins"].items():
        yield "", f"hvd_compress.{name}", _state(state)
    yield from _horovod_rows(facts["horovod"])
    for name, launcher in facts["launchers"].items():
        text = launcher["error"] or f"{launcher['path']}, {launcher['version']}"
        yield "launchers" if name == "mpi" else "", _LAUNCHERS[name], text
    cores = facts["cores"]
    threads = cores["OMP_NUM_THREADS"] or "not set"
    yield "cores", "", f"{cores['usable']} of {cores['machine']} usable, OMP_NUM_THREADS {threads}"


def _state(state: dict[str, Any]) -> str:
    return state["error"] or "works"


def _horovod_rows(horovod: dict[str, Any] | None) -> Iterator[tuple[str, str, str]]:
    if horovod is None:
        yield "Horovod", "", "not installed; pip cannot build it: run scripts/setup.sh of hvd_compress"
        return
    yield "Horovod", "", horovod["version"] or "version unknown"
    for framework, flags in horovod["frameworks"].items():
        built_for = horovod["built_for"][framework]
        yield "", framework + (f" {built_for}" if built_for and flags else ""), _flags(flags)


def _flags(flags: dict[str, Any] | None) -> str:
    if flags is None:
        return "not built"
    if flags["error"]:
        return f"broken: {flags['error']}"
    yes, no = ([_SPELLED.get(f, f.upper()) for f in BUILD_FLAGS if flags[f] is value] for value in (True, False))
    return f"built with {', '.join(yes) or 'nothing'}; without {', '.join(no) or 'nothing'}"
