"""What pytest does on each rank of a launch: the planned cases in step with the other ranks, watched by a clock."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Generator

import pytest

from tests.parallel.harness import CASE_SECONDS, END_SECONDS, START_SECONDS, Folder, Outcome

LEAVE_SECONDS = 3.0
POLL_SECONDS = 0.005


def announcement(case: str) -> str:
    """Return the line in a rank's output from which on it belongs to `case`."""
    return f">>> {case}"


def rank_of_process() -> int:
    """Return this process's rank as its launcher says it, known before Horovod is started."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["HOROVOD_RANK"])


def case_seconds(item: pytest.Item) -> float:
    """Return how long the case may take."""
    mark = item.get_closest_marker("watchdog")
    return float(mark.args[0]) if mark else CASE_SECONDS


class Watchdog:
    """Ends this process when a case takes too long, and leaves the stacks of all threads in every bad end.

    The clock is faulthandler's own thread: it needs no GIL, so that it bites where native code hangs.
    """

    def __init__(self, folder: Folder, rank: int) -> None:
        self._file = folder.stacks_file(rank).open("w")
        faulthandler.enable(self._file)
        # A launcher sends it to the ranks that are left when another one has died.
        faulthandler.register(signal.SIGTERM, self._file, chain=True)

    def start(self, seconds: float) -> None:
        """Give the process `seconds` from now."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)

    def stop(self) -> None:
        """Take the limit away."""
        faulthandler.cancel_dump_traceback_later()


class RankPlugin:
    """Runs the plan, writes outcomes, and leaves the launch after the first case that failed on any rank."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._rank = rank_of_process()
        launch, self._cases = folder.plan()
        self._workers = launch.workers
        self._reports: list[pytest.TestReport] = []
        self._watchdog = Watchdog(folder, self._rank)
        self._watchdog.start(START_SECONDS)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the planned cases in the plan's order, which is the order on every rank."""
        found = {item.nodeid: item for item in items}
        missing = [case for case in self._cases if case not in found]
        if missing:
            raise pytest.UsageError(f"rank {self._rank} does not find the planned cases {missing}")
        items[:] = [found[case] for case in self._cases]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run one case, then wait for the other ranks."""
        print(f"\n{announcement(item.nodeid)}", flush=True)
        self._reports = []
        result = yield
        self._watchdog.stop()
        case = self._cases.index(item.nodeid)
        self._folder.write_outcome(case, self._rank, outcome_of(self._reports))
        self._end_together(case)
        return result

    # The first case's set-up imports and starts Horovod, the last one's tear-down ends it: neither is the case's time.
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Watch the fixtures of a case start."""
        self._watchdog.start(START_SECONDS)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch the case itself."""
        self._watchdog.start(case_seconds(item))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Watch the fixtures of a case end."""
        self._watchdog.start(END_SECONDS)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a phase of the case came to."""
        self._reports.append(report)

    def _end_together(self, case: int) -> None:
        # Ranks that are out of step would let the next case fail for this one's fault, so that a launch ends with
        # its first failure. Others get a moment to fail by themselves: their traceback says more than their death.
        leave_at = None
        while True:
            outcomes = self._folder.outcomes(case, self._workers)
            failed = any(outcome is not None and outcome.status != "passed" for outcome in outcomes)
            if failed and leave_at is None:
                leave_at = time.monotonic() + LEAVE_SECONDS
            if None not in outcomes or (leave_at is not None and time.monotonic() > leave_at):
                break
            time.sleep(POLL_SECONDS)
        if failed:
            # Not sys.exit: fixtures and Horovod's own end could wait for ranks that are stuck.
            os._exit(1)


def outcome_of(reports: list[pytest.TestReport]) -> Outcome:
    """Return what the phases of a case (set-up, call, tear-down) come to together."""
    seconds = sum(report.duration for report in reports)
    for status in ("failed", "skipped"):
        # The text of a skip is (file, line, reason).
        texts = [
            report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            for report in reports
            if report.outcome == status
        ]
        if texts:
            return Outcome(status, "\n".join(texts), seconds)
    return Outcome("passed", "", seconds)
