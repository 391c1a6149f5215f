"""The first thing a stranger sees: one model trained with each method on the workers of one machine, compared."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from hvd_compress.launch import Launcher, LaunchError, run_workers
from hvd_compress.study.quickstart_report import network_note, picture, table
from hvd_compress.study.results import RESULT_FILE, RunResult

METHODS = {
    "dense": "none",
    "top-k": "topk:density=0.01",
    # With more momentum the learning rate, which is the same for all methods, would be too high.
    "dgc": "dgc:density=0.01,momentum=0.3",
    "jointsq": "jointsq:bits_per_entry=0.32",
}
SCRIPTS = {"torch": "train_lm.py", "tensorflow": "train_lm_tf.py"}
FOLDERS = {"torch": Path("results/quickstart"), "tensorflow": Path("results/quickstart-tensorflow")}
STEPS = 600
COLUMNS_PER_WORKER = 10
POINTS = 9


class RunFailed(RuntimeError):
    """A training run that did not end well; the text says which and how."""


def parser() -> argparse.ArgumentParser:
    """Arguments of ``scripts/quickstart.py``."""
    parser = argparse.ArgumentParser(
        prog="quickstart",
        description="Train a language model on this machine without and with compression, and compare the methods.",
    )
    shown = "(default: %(default)s)"
    parser.add_argument(
        "--methods",
        type=methods,
        default=",".join(METHODS),
        metavar="LIST",
        help=f"some of {', '.join(METHODS)}, with commas between them {shown}",
    )
    parser.add_argument("--framework", choices=SCRIPTS, default="torch", help=f"what trains the model {shown}")
    parser.add_argument("--gloo", action="store_true", help="start workers with horovodrun --gloo instead of mpirun")
    folders = ", ".join(f"{folder} for {framework}" for framework, folder in FOLDERS.items())
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder of results (default: {folders})")
    parser.add_argument("--steps", type=at_least(1), default=STEPS, metavar="N", help=f"steps of each run {shown}")
    parser.add_argument("--workers", type=at_least(2), default=2, metavar="N", help=f"workers on this machine {shown}")
    return parser


def methods(text: str) -> list[str]:
    """Methods by name, each once, in their usual order."""
    chosen = text.split(",")
    for name in chosen:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(f"must be some of {', '.join(METHODS)}, got {name!r}")
    return [name for name in METHODS if name in chosen]


def at_least(least: int) -> Callable[[str], int]:
    """A converter of arguments that takes integers from ``least`` on."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return int(text)

    return integer


def train_once(script: Path, compression: str, out: Path, arguments: argparse.Namespace) -> RunResult:
    """Run the training script on all workers and read its result.

    Raises
    ------
    RunFailed
        The run ended with an error, diverged, or left the ranks with different parameters.
    """
    (out / RESULT_FILE).unlink(missing_ok=True)
    settings = {
        "compression": compression,
        "out": out,
        "steps": arguments.steps,
        "batch-size": COLUMNS_PER_WORKER * arguments.workers,
        "evaluate-every": max(1, arguments.steps // POINTS),
    }
    command = [sys.executable, str(script), *(f"--{name}={value}" for name, value in settings.items())]
    launcher: Launcher = "gloo" if arguments.gloo else "mpi"
    status = run_workers(command, workers=arguments.workers, launcher=launcher).returncode
    if status:
        raise RunFailed(f"training with {compression} ended with status {status}; what it said is above")
    result = RunResult.load(out)
    if not math.isfinite(result.test_perplexity):
        raise RunFailed(f"training with {compression} diverged; its course is in {out / RESULT_FILE}")
    if not result.parameters_equal:
        raise RunFailed(f"training with {compression} left different parameters on the ranks: {result.parameter_crc32}")
    return result


def show(results: dict[str, RunResult], out: Path) -> None:
    """Print the comparison and draw the picture."""
    Console().print(table(results))
    for method, result in results.items():
        if method != "dense" and "dense" in results:
            change = result.test_perplexity / results["dense"].test_perplexity - 1
            side = "above" if change > 0 else "below"
            print(f"The test perplexity with {method} is {abs(change):.1%} {side} dense training's.")
    print("In every run all ranks ended with the same parameters, bit for bit.")
    print(network_note(results))
    print(f"Picture: {picture(results, out / 'perplexity.png')}")


def main(scripts: Path, argv: Sequence[str] | None = None) -> int:
    """Train with each method, show the comparison; returns the exit status.

    Parameters
    ----------
    scripts : Path
        Folder of the training scripts, one of which is started on every worker.
    argv : sequence of str, optional
        Arguments; the process's own by default.
    """
    arguments, began = parser().parse_args(argv), time.monotonic()
    out = arguments.out or FOLDERS[arguments.framework]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"error: cannot make the folder {out}: {error.strerror}; choose another --out", file=sys.stderr)
        return 2
    script = scripts / SCRIPTS[arguments.framework]
    try:
        results = {method: train_once(script, METHODS[method], out / method, arguments) for method in arguments.methods}
    except (RunFailed, LaunchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; all workers have been ended", file=sys.stderr)
        return 130
    show(results, out)
    print(f"All runs took {(time.monotonic() - began) / 60:.1f} minutes.")
    return 0
