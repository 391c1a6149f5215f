"""What the commands share: the ``--json`` option and the way tables are printed."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_json_option", "console", "print_json"]


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def print_json(facts: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Print one JSON value."""
    print(json.dumps(facts, indent=2))


def console(terminal: bool | None = None, width: int | None = None) -> Console:
    """Return what prints tables: as wide as the terminal, 80 columns in a pipe.

    Parameters
    ----------
    terminal : bool, optional
        Whether a person sees standard output, where that cannot be told from it.
    width : int, optional
        Columns, instead of those.

    Raises
    ------
    ModuleNotFoundError
        rich is not installed.
    """
    from rich.console import Console

    # Intervals such as [0, 1] and extras such as [cli] must not be taken for markup.
    return Console(markup=False, highlight=False, emoji=False, force_terminal=terminal, width=width)
