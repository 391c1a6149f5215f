"""A pytest plugin (``-p scripts.deadline``): no test begins after some seconds, and the counts go to a JSON file.

The variables DEADLINE_SECONDS and DEADLINE_REPORT say how many, and which file.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

begin = time.monotonic()
counts = {"passed": 0, "failed": 0, "skipped": 0}
failures: list[dict[str, str]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test: by its call, or by what went wrong before or after."""
    if report.when == "call" or report.outcome != "passed":
        counts[report.outcome] += 1
    if report.failed:
        failures.append({"test": report.nodeid, "said": str(report.longrepr)[-2000:]})


def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Begin no more tests after the deadline; this one is the last."""
    if time.monotonic() - begin > float(os.environ["DEADLINE_SECONDS"]):
        item.session.shouldstop = f"{os.environ['DEADLINE_SECONDS']} s are over"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the counts."""
    complete = not session.shouldstop and session.testscollected > 0
    facts = {**counts, "collected": session.testscollected, "complete": complete, "failures": failures}
    facts["seconds"] = round(time.monotonic() - begin, 1)
    Path(os.environ["DEADLINE_REPORT"]).write_text(json.dumps(facts), encoding="utf-8")
