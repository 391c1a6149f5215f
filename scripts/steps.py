"""Run the steps of the set-up: show what is going on and for how long, and turn a failure into one sentence."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

AGAIN = "run bash scripts/setup.sh again"
# Less than this left after a failure means that the disk was the reason, even where the log could not say so any more.
FULL_BYTES = 50 * 2**20
DISK_WORDS = re.compile(r"No space left on device|Disk quota exceeded|\[Errno 28\]")
NETWORK_WORDS = re.compile(
    r"NewConnectionError|ConnectionError|ConnectTimeout|ReadTimeout|Max retries exceeded|ProxyError|NameResolutionError"
    # What pip says last of all where it could reach no index.
    r"|from versions: none"
)
SECONDS_BETWEEN_LINES = 60.0
SECONDS_TO_END = 10.0


class Problem(Exception):
    """The set-up cannot go on; the message is one sentence that says what to do."""


def in_words(seconds: float) -> str:
    """Return a time span as people read it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group; interrupted, a Python process removes its temporary files first."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Steps:
    """Commands run one after the other, their output in one log, one visible line for each step."""

    def __init__(self, log: Path, total: int) -> None:
        self._log = log
        self._total = total
        self._number = 0
        self._begin = time.monotonic()
        self._line = ""

    def run(self, what: str, usually: str, *commands: Sequence[str], env: Mapping[str, str] | None = None) -> str:
        """Run the commands of one step; return their output. Raises Problem where one fails."""
        self._number += 1
        self._begin = time.monotonic()
        self._line = f"[{self._number}/{self._total}] {what} (usually {usually})"
        if not sys.stdout.isatty():
            print(self._line, flush=True)
        written = self._log.stat().st_size if self._log.exists() else 0
        for command in commands:
            if self._wait(command, dict(os.environ, **(env or {}))) != 0:
                raise Problem(self._explain(what, self._output(written)))
        ending = f"done in {in_words(time.monotonic() - self._begin)}"
        print(f"\r\033[K{self._line}: {ending}" if sys.stdout.isatty() else f"      {ending}", flush=True)
        return self._output(written)

    def _wait(self, command: Sequence[str], env: Mapping[str, str]) -> int:
        with self._log.open("ab") as log:
            # A group of its own, so that the compilers below a build end with it.
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        try:
            shown = time.monotonic()
            while process.poll() is None:
                shown = self._show(shown)
                time.sleep(0.1)
            return process.returncode
        finally:
            if process.returncode is None:
                end(process)

    def _show(self, shown: float) -> float:
        """Show the elapsed time and Ninja's count of what it has built, but not too often; return when it was shown."""
        now = time.monotonic()
        terminal = sys.stdout.isatty()
        if now - shown < (1.0 if terminal else SECONDS_BETWEEN_LINES):
            return shown
        counts = re.findall(r"^\[\d+/\d+\]", self._output(max(0, self._log.stat().st_size - 5000)), re.MULTILINE)
        status = " ".join([f"… {in_words(now - self._begin)}", *counts[-1:]])
        print(
            f"\r\033[K{self._line} {status}" if terminal else f"      {status}",
            end="" if terminal else "\n",
            flush=True,
        )
        return now

    def _output(self, begin: int) -> str:
        with self._log.open("rb") as log:
            log.seek(begin)
            return log.read().decode(errors="replace")

    def _explain(self, what: str, output: str) -> str:
        if sys.stdout.isatty():
            print()
        if DISK_WORDS.search(output) or shutil.disk_usage(self._log.parent).free < FULL_BYTES:
            return f"The disk ran full ({what}): make room for {self._log.parent}, and {AGAIN}."
        if NETWORK_WORDS.search(output):
            return f"The package index did not answer ({what}): check the network or PIP_INDEX_URL, and {AGAIN}."
        print("\n".join(output.splitlines()[-20:]), file=sys.stderr)
        return f"{what} failed: its last lines are above, all of them in {self._log}."
