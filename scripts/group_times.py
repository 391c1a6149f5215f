"""A pytest plugin (``-p scripts.group_times``): the minutes that each folder of tests took, after the report."""

from __future__ import annotations

from collections import defaultdict

import pytest

seconds: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a phase of a test (set-up, call or tear-down) to its folder."""
    folder = report.nodeid.partition("::")[0].rpartition("/")[0]
    seconds["/".join(folder.split("/")[:2])] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    terminalreporter.section("minutes per folder")
    for folder, total in seconds.items():
        terminalreporter.write_line(f"{folder:20} {total / 60:5.1f}")
