"""A pytest plugin (``-p scripts.fault_table``): how long it took after each fault, as a table after the report."""

from __future__ import annotations

import pytest

lines: list[tuple[str, ...]] = [("fault", "launcher", "codec", "seconds", "until", "test")]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the line of a test that has met with a fault."""
    if report.when != "call":
        return
    noted = [value for name, value in report.user_properties if name == "fault"]
    for fault, launcher, codec, seconds, until in noted:
        lines.append((fault, launcher, codec, f"{seconds:.1f}", until, report.outcome))
    if report.failed and not noted:
        lines.append((report.nodeid.rpartition("::")[2], "", "", "", "", report.outcome))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    terminalreporter.section("seconds after each fault")
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        terminalreporter.write_line("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)))
