"""One launch of cases, seen from the process that a person started: what came of each case, and why."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.parallel.harness import END_SECONDS, START_SECONDS, Launch, Outcome, new_folder
from tests.parallel.inner import announcement, case_seconds
from tests.parallel.ranks import running_ranks, wait

POLL_SECONDS = 0.02
LOG_CHARACTERS = 8_000
MACHINERY = ("/_pytest/", "/pluggy/", "<frozen ")


class Attempt:
    """One launch of cases of one file, running beside this process until its last case or its first failure."""

    def __init__(self, config: pytest.Config, launch: Launch, items: Sequence[pytest.Item]) -> None:
        self.launch = launch
        self._cases = [item.nodeid for item in items]
        self._limits = [case_seconds(item) for item in items]
        self._deadline = time.monotonic() + START_SECONDS + sum(self._limits) + END_SECONDS
        self._files = contextlib.ExitStack()
        self._folder = self._files.enter_context(new_folder())
        self._folder.write_plan(launch, self._cases)
        self._processes = contextlib.ExitStack()
        arguments = pytest_arguments(config, items[0].path)
        self._launcher = self._processes.enter_context(running_ranks(launch, arguments, self._folder))

    def covers(self, item: pytest.Item) -> bool:
        """Say whether the case is in this launch's plan."""
        return item.nodeid in self._cases

    def close(self) -> None:
        """End all processes of the launch and remove its folder."""
        self._processes.close()
        self._files.close()

    def broke_at_start(self) -> bool:
        """Say whether the launch is over without a rank having come to its first case."""
        started = [announcement(self._cases[0]) in self._folder.log(rank) for rank in range(self.launch.workers)]
        return self._launcher.poll() is not None and not any(started)

    def result(self, item: pytest.Item) -> tuple[str, float]:
        """Wait until the case has ended on every rank; return why it failed (empty if it passed) and its seconds."""
        case = self._cases.index(item.nodeid)
        workers = self.launch.workers
        while None in self._folder.outcomes(case, workers):
            if self._launcher.poll() is not None:
                break
            if time.monotonic() > self._deadline:
                break
            time.sleep(POLL_SECONDS)
        outcomes = self._folder.outcomes(case, workers)
        seconds = max((outcome.seconds for outcome in outcomes if outcome), default=self._limits[case])
        bad = [rank for rank, outcome in enumerate(outcomes) if outcome is None or outcome.status != "passed"]
        if bad:
            # A rank's stacks and the launcher's last words are there only when all has ended.
            wait(self._launcher, END_SECONDS)
            self._processes.close()
            return self._explain(case, outcomes, bad), seconds
        return (self._explain_end() if case == len(self._cases) - 1 else ""), seconds

    def _explain(self, case: int, outcomes: list[Outcome | None], bad: list[int]) -> str:
        parts = [f"{self.launch}: {self._summary(outcomes, bad)}"]
        for rank in bad:
            outcome = outcomes[rank]
            status = outcome.status if outcome else "no outcome"
            parts += [f"======== rank {rank}: {status} ========", outcome.text if outcome else ""]
            if outcome is None:
                parts += [f"-------- stacks of rank {rank} --------", readable(self._folder.stacks(rank))]
            log = self._folder.log(rank).rpartition(announcement(self._cases[case]))[2]
            parts += [f"-------- output of rank {rank} --------", log[-LOG_CHARACTERS:]]
        launcher = self._folder.text("launcher.log")[-LOG_CHARACTERS:]
        return "\n".join([*parts, f"-------- launcher, exit status {self._launcher.poll()} --------", launcher])

    def _summary(self, outcomes: list[Outcome | None], bad: list[int]) -> str:
        silent = [rank for rank in bad if outcomes[rank] is None]
        loud = [rank for rank in bad if rank not in silent]
        # faulthandler's own headline, which tells a watchdog from a crash.
        headlines = [re.match(r"Timeout \((.*)\)", self._folder.stacks(rank)) for rank in range(self.launch.workers)]
        limits = [headline[1] for headline in headlines if headline]
        missing = f"no outcome within {limits[0]}" if limits else "the launch ended without an outcome"
        facts = [(f"not passed on ranks {loud}", loud), (f"{missing} on ranks {silent}", silent)]
        return f"{'; '.join(fact for fact, ranks in facts if ranks)}, of {self.launch.workers}"

    def _explain_end(self) -> str:
        status = wait(self._launcher, END_SECONDS)
        if status == 0:
            return ""
        state = f"ended with exit status {status}" if status is not None else f"had not ended after {END_SECONDS:g} s"
        self._processes.close()
        parts = [f"{self.launch}: every case passed, but the launch {state}"]
        for rank in range(self.launch.workers):
            parts += [f"-------- stacks of rank {rank} --------", readable(self._folder.stacks(rank))]
        return "\n".join([*parts, "-------- launcher --------", self._folder.text("launcher.log")])


def readable(stacks: str) -> str:
    """Return the stacks without the frames of pytest and of Python's import, which are most of them."""
    return "\n".join(line for line in stacks.splitlines() if not any(part in line for part in MACHINERY))


def pytest_arguments(config: pytest.Config, file: Path) -> list[str]:
    """Return the arguments of the Python that runs pytest on a rank, with this pytest's own root and settings."""
    settings = ["-c", str(config.inipath)] if config.inipath else []
    # Output goes to the rank's file as it comes, and faulthandler is the watchdog's: so neither is pytest's.
    # Hypothesis takes a second to start on each rank, and examples that ranks draw by themselves would differ.
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "faulthandler", "hypothesispytest")]
    plain = ["-s", "-q", "--no-header", "--tb=short", f"--rootdir={config.rootpath}"]
    return ["-m", "pytest", *plain, *without, *settings, str(file)]
