"""What the pytest that a person starts does for cases that run on several ranks: launch them, and report for them."""

from __future__ import annotations

import time

import pytest

from hvd_compress.launch import LaunchError
from tests.parallel.attempt import Attempt
from tests.parallel.harness import Launch


def launch_of(item: pytest.Item) -> Launch | None:
    """Return the launch that the case belongs to, None for a test of the outer process itself."""
    launch = item.callspec.params.get("launch") if hasattr(item, "callspec") else None
    return launch if isinstance(launch, Launch) else None


class OuterPlugin:
    """Starts one launch for each file, launcher and rank count, and a further one only after a case has failed."""

    def __init__(self) -> None:
        self._attempt: Attempt | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Report a launched case instead of running it here; leave any other test to pytest."""
        launch = launch_of(item)
        if launch is None:
            if nextitem is None or launch_of(nextitem) is None:
                return None
            # Pytest would keep what both share set up, and no launched case takes it down.
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
            return True
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        began = time.time()
        try:
            failure, seconds = self._attempt_for(item, launch).result(item)
        except (LaunchError, ValueError) as error:
            # One sentence on this machine or on the file's own mark; other tests can still run.
            failure, seconds = f"{launch}: {error}", 0.0
        except SystemExit as ended:
            # The launcher turns SIGTERM into this, which pytest takes for a fault of its own.
            pytest.exit("ended by a signal", returncode=ended.code if isinstance(ended.code, int) else None)
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            outcome="failed" if failure else "passed",
            longrepr=failure or None,
            when="call",
            duration=seconds,
            start=began,
            stop=time.time(),
        )
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        last = nextitem is None or self._attempt is None or not self._attempt.covers(nextitem)
        broken = self._attempt is not None and self._attempt.broke_at_start()
        if last or (failure and not broken):
            self._close()
        return True

    def pytest_sessionfinish(self) -> None:
        """Leave no process behind when the session stops early."""
        self._close()

    def _attempt_for(self, item: pytest.Item, launch: Launch) -> Attempt:
        if self._attempt is None:
            same = [other for other in item.session.items if other.path == item.path and launch_of(other) == launch]
            self._attempt = Attempt(item.config, launch, same[same.index(item) :])
        return self._attempt

    def _close(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
        self._attempt = None
