#!/usr/bin/env python
"""Compare the ranks of finished training runs: exit status 1 unless those of each run end equal, bit for bit.

Where a folder has a file `link_bytes`, what each host had sent before the run and then after it, a compressed run must
have sent less than half of what the dense run before it has.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvd_compress.study.results import RunResult


def link_bytes(folder: Path) -> float | None:
    """Return what a host sent during the run, on average, if that was counted."""
    file = folder / "link_bytes"
    if not file.exists():
        return None
    counts = [int(word) for word in file.read_text(encoding="utf-8").split()]
    hosts = len(counts) // 2
    return (sum(counts[hosts:]) - sum(counts[:hosts])) / hosts


def compare(folders: list[Path], ranks: int) -> tuple[Table, list[str]]:
    """Return a table of the runs, and a sentence for everything that is wrong with them."""
    table = Table("run", "ranks", "equal", "bytes a step and rank", "times less", "MB a host sent", "step ms")
    wrong = []
    dense_sent = None
    for folder in folders:
        run, sent = RunResult.load(folder), link_bytes(folder)
        if run.workers != ranks:
            wrong.append(f"{folder.name}: {ranks} ranks were asked for, and {run.workers} have trained")
        if not run.parameters_equal:
            wrong.append(f"{folder.name}: the ranks end with different parameters, {run.parameter_crc32}")
        if run.traffic.compression_ratio == 1:
            dense_sent = sent
        elif dense_sent is not None and sent is not None and 2 * sent > dense_sent:
            wrong.append(f"{folder.name}: a host sent {sent:,.0f} bytes, in the dense run {dense_sent:,.0f}")
        table.add_row(
            folder.name,
            str(run.workers),
            "yes" if run.parameters_equal else "NO",
            f"{run.traffic.sent_bytes:,}",
            f"{run.traffic.compression_ratio:.1f}",
            "" if sent is None else f"{sent / 1e6:.1f}",
            f"{run.milliseconds.step:.0f}",
        )
    return table, wrong


def main() -> int:
    """Print the table and what is wrong; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="ranks that each run must have had")
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="what --out was, dense runs first")
    arguments = parser.parse_args()
    table, wrong = compare(arguments.folders, arguments.ranks)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for sentence in wrong:
        print(f"equal_ranks.py: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
