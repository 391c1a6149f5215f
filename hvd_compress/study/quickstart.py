"""The first thing a stranger sees: one model trained dense and with top-k, on the workers of one machine, compared."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from hvd_compress.launch import LaunchError, run_workers
from hvd_compress.study.report import network_note, picture, table
from hvd_compress.study.results import RESULT_FILE, RunResult

METHODS = {"dense": "none", "topk": "topk:density=0.01"}
STEPS = 900
COLUMNS_PER_WORKER = 10
# Narrower, the ten columns of the table no longer fit; a pipe has no width of its own.
TABLE_WIDTH = 110


class RunFailed(RuntimeError):
    """A training run that did not end well; the text says which and how."""


def parser() -> argparse.ArgumentParser:
    """Arguments of ``scripts/quickstart.py``."""
    parser = argparse.ArgumentParser(
        prog="quickstart", description="Train a language model dense and with top-k compression, and compare the two."
    )
    parser.add_argument("--gloo", action="store_true", help="start workers with horovodrun --gloo, not mpirun")
    parser.add_argument("--out", type=Path, default=Path("results/quickstart"), metavar="DIR", help="results")
    parser.add_argument("--steps", type=_at_least(1), default=STEPS, metavar="N", help="optimizer steps of each run")
    parser.add_argument("--workers", type=_at_least(2), default=2, metavar="N", help="workers on this machine")
    return parser


def _at_least(least: int) -> type[int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return int(text)

    return number  # type: ignore[return-value]


def train_once(script: Path, compression: str, out: Path, arguments: argparse.Namespace) -> RunResult:
    """Run the training script on all workers and read its result.

    Raises
    ------
    RunFailed
        The run ended with an error, or learned nothing finite.
    """
    (out / RESULT_FILE).unlink(missing_ok=True)
    command = [sys.executable, str(script), "--compression", compression, "--out", str(out)]
    command += ["--batch-size", str(COLUMNS_PER_WORKER * arguments.workers)]
    command += ["--steps", str(arguments.steps), "--evaluate-every", str(max(1, arguments.steps // 9))]
    launcher: Literal["mpi", "gloo"] = "gloo" if arguments.gloo else "mpi"
    status = run_workers(command, workers=arguments.workers, launcher=launcher).returncode
    if status:
        raise RunFailed(f"training with {compression} ended with status {status}; its own words are above")
    result = RunResult.load(out)
    if not math.isfinite(result.test_perplexity):
        raise RunFailed(f"training with {compression} diverged; see {out / RESULT_FILE}")
    if not result.parameters_equal:
        raise RunFailed(
            f"training with {compression} left the ranks with different parameters; see {out / RESULT_FILE}"
        )
    return result


def main(script: Path, argv: Sequence[str] | None = None) -> int:
    """Train both, print the comparison; returns the exit status.

    Parameters
    ----------
    script : Path
        The training script, started on every worker.
    argv : sequence of str, optional
        Arguments; the process's own by default.
    """
    arguments = parser().parse_args(argv)
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    began = time.monotonic()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        results = {
            method: train_once(script, compression, arguments.out / method, arguments)
            for method, compression in METHODS.items()
        }
    except (RunFailed, LaunchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: cannot write to {arguments.out}: {error.strerror}; choose another --out", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the workers have been ended", file=sys.stderr)
        return 130
    console.print(table(results))
    change = results["topk"].test_perplexity / results["dense"].test_perplexity - 1
    side = "above" if change > 0 else "below"
    console.print(f"Top-k's test perplexity is {abs(change):.1%} {side} dense training's.")
    console.print("The parameters of all ranks are equal, bit for bit, in both runs.")
    console.print(network_note(results))
    print(f"Picture: {picture(results, arguments.out / 'perplexity.png')}")
    print(f"Both runs took {(time.monotonic() - began) / 60:.1f} minutes.")
    return 0
