"""The harness itself, on small files of cases that pass, fail, hang, die or never start."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hvd_compress.launch import Launcher
from tests.parallel import own_launch
from tests.parallel.harness import FOLDER
from tests.parallel.inner import rank_of_process
from tests.parallel.ranks import REPOSITORY

pytestmark = pytest.mark.own_launch

# Every rank that starts leaves a line in `starts`, so that launches can be counted.
HEAD = """
import os, time
import pytest
from tests.parallel.inner import rank_of_process

pytestmark = pytest.mark.launches(*LAUNCHES)
RANK = None
if "HVD_COMPRESS_TEST_FOLDER" in os.environ:
    RANK = rank_of_process()
    with open("starts", "a") as starts:
        print(RANK, file=starts)
"""

# Importing torch takes seconds, and only ranks need it.
DEADLOCK = """
if RANK is not None:
    import torch

@pytest.mark.watchdog(8)
def test_hangs(hvd, rank):
    hvd.allgather(torch.zeros(1), name="only here" if rank else "only there")
"""

# PyDLL calls with the GIL held, so that no Python code could end it.
HOLDS_GIL = """
@pytest.mark.watchdog(2)
def test_hangs():
    import ctypes
    if RANK:
        ctypes.PyDLL(None).sleep(100)
"""

AFTER = """
def test_after():
    assert RANK in (0, 1)
"""


@dataclass(frozen=True)
class Run:
    """What came of a file of cases."""

    results: dict[str, str]
    starts: int
    output: str


@dataclass(frozen=True)
class Sample:
    """A file of cases in a folder of its own, run by a pytest of its own."""

    folder: Path

    def write(self, launches: list[tuple[str, int]], *cases: str) -> None:
        """Write the cases, to be launched so."""
        (self.folder / "conftest.py").write_text("from tests.parallel.conftest import *\n")
        parts = [HEAD.replace("LAUNCHES", repr(launches)), *map(textwrap.dedent, cases)]
        (self.folder / "test_sample.py").write_text("\n".join(parts))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start pytest on the file."""
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-rA", "-pno:cacheprovider", "-pno:hypothesispytest", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Python takes SIGINT as an interrupt only where it is not ignored from the start, as below a shell's '&'.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str) -> Run:
        """Run the file to its end."""
        output, _ = self.start(*arguments).communicate(timeout=180)
        results = re.findall(r"^(PASSED|FAILED|ERROR) test_sample\.py::(\S+)", output, re.MULTILINE)
        return Run({case: result for result, case in results}, self.starts(), output)

    def starts(self) -> int:
        """Return how many ranks have started so far."""
        file = self.folder / "starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def processes(self) -> list[str]:
        """Return the processes of its launches that are alive."""
        entry = f"{FOLDER}={self.folder}".encode()
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            # Others end while this one looks.
            with contextlib.suppress(OSError):
                if entry in file.read_bytes():
                    found.append((file.parent / "cmdline").read_text().replace("\0", " "))
        return found


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path)


def test_green_file_is_one_launch_for_each_launcher_and_rank_count(sample: Sample) -> None:
    sample.write(
        [("mpi", 4), ("gloo", 2)],
        """
        import torch

        def test_ranks_are_told_apart(rank, world, gather, launch):
            assert world == launch.workers
            assert gather(rank) == list(range(world))

        @pytest.mark.parametrize("value", [1, 2])
        def test_generator_is_equal_but_string_hashes_differ(value, world, gather):
            assert len(set(gather(torch.rand(1).item()))) == 1
            assert len(set(gather(hash("name")))) == world
        """,
    )
    run = sample.run()
    assert list(run.results.values()) == ["PASSED"] * 6, run.output
    assert "test_generator_is_equal_but_string_hashes_differ[mpi-4-2]" in run.results
    assert run.starts == 4 + 2
    assert sample.processes() == []


def test_failure_on_one_rank_shows_its_traceback_and_hides_no_other_case(sample: Sample) -> None:
    sample.write(
        [("mpi", 2)],
        """
        def test_before():
            print("not of interest")

        def test_fails():
            print("seen on rank", RANK)
            assert RANK == 0
        """,
        AFTER,
    )
    run = sample.run()
    assert run.results == {
        "test_before[mpi-2]": "PASSED",
        "test_fails[mpi-2]": "FAILED",
        "test_after[mpi-2]": "PASSED",
    }, run.output
    assert "not passed on ranks [1], of 2" in run.output
    assert "assert 1 == 0" in run.output
    assert "seen on rank 1" in run.output
    assert "not of interest" not in run.output
    assert run.starts == 4


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
def test_deadlock_fails_by_time_out_and_leaves_no_process(sample: Sample, launcher: str) -> None:
    sample.write([(launcher, 2)], DEADLOCK, AFTER)
    run = sample.run()
    assert run.results == {f"test_hangs[{launcher}-2]": "FAILED", f"test_after[{launcher}-2]": "PASSED"}, run.output
    # With Gloo, the rank whose time ends later may see an error, because its peer has gone.
    assert "no outcome within 0:00:08 on ranks" in run.output
    assert "in test_hangs" in run.output.partition("stacks of rank")[2]
    assert sample.processes() == []


def test_native_code_that_holds_the_interpreter_fails_by_time_out(sample: Sample) -> None:
    sample.write([("mpi", 2)], HOLDS_GIL, AFTER)
    run = sample.run()
    assert run.results == {"test_hangs[mpi-2]": "FAILED", "test_after[mpi-2]": "PASSED"}, run.output
    assert "no outcome within 0:00:02 on ranks [1], of 2" in run.output
    assert "in test_hangs" in run.output.partition("stacks of rank 1")[2]
    assert sample.processes() == []


def test_rank_that_dies_leaves_its_stack(sample: Sample) -> None:
    sample.write(
        [("mpi", 2)],
        """
        def test_dies():
            if RANK == 1:
                os.abort()
            time.sleep(100)
        """,
        AFTER,
    )
    run = sample.run()
    assert run.results == {"test_dies[mpi-2]": "FAILED", "test_after[mpi-2]": "PASSED"}, run.output
    assert "the launch ended without an outcome on ranks [0, 1]" in run.output
    assert "Fatal Python error: Aborted" in run.output


def test_skip_on_a_rank_is_a_failure(sample: Sample) -> None:
    sample.write([("mpi", 2)], 'def test_skips(): pytest.skip("not here")')
    run = sample.run()
    assert run.results == {"test_skips[mpi-2]": "FAILED"}, run.output
    assert "rank 1: skipped" in run.output
    assert "not here" in run.output


def test_launch_that_cannot_start_is_tried_once(sample: Sample) -> None:
    sample.write([("mpi", 2)], "if RANK is not None: raise ValueError('broken on a rank')", AFTER, "def test_b(): pass")
    run = sample.run()
    assert list(run.results.values()) == ["FAILED", "FAILED"], run.output
    assert "broken on a rank" in run.output
    assert run.starts <= 2


def test_launch_that_this_machine_refuses_fails_its_cases_only(sample: Sample) -> None:
    sample.write([("mpi", 0)], AFTER, "@pytest.mark.own_launch\ndef test_outside(): pass")
    run = sample.run()
    assert run.results == {"test_outside": "PASSED", "test_after[mpi-0]": "FAILED"}, run.output
    assert "mpi-0: workers must be at least 1, not 0" in run.output


def test_cases_of_the_outer_process_may_stand_before_launched_ones(sample: Sample) -> None:
    sample.write(
        [("mpi", 2)],
        """
        @pytest.mark.own_launch
        def test_of_the_outer_process():
            assert RANK is None

        def test_of_a_rank():
            assert RANK in (0, 1)
        """,
    )
    (sample.folder / "test_sequel.py").write_text("def test_of_another_file():\n    pass\n")
    run = sample.run()
    assert list(run.results.values()) == ["PASSED"] * 2, run.output
    assert "PASSED test_sequel.py::test_of_another_file" in run.output


def test_one_case_can_be_chosen_by_id_and_by_keyword(sample: Sample) -> None:
    sample.write([("mpi", 2), ("gloo", 2)], AFTER, "def test_other(): pass")
    assert sample.run("test_sample.py::test_after[mpi-2]").results == {"test_after[mpi-2]": "PASSED"}
    assert sample.run("-k", "other and mpi").results == {"test_other[mpi-2]": "PASSED"}


@pytest.mark.parametrize(
    ("number", "word"),
    [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "ended by a signal")],
    ids=["int", "term"],
)
def test_interrupted_run_leaves_no_process(sample: Sample, number: int, word: str) -> None:
    sample.write([("mpi", 2)], HOLDS_GIL.replace("watchdog(2)", "watchdog(100)"))
    with sample.start() as pytest_process:
        try:
            wait_until(lambda: sample.starts() == 2)
        finally:
            pytest_process.send_signal(number)
        output, _ = pytest_process.communicate(timeout=60)
    assert word in output
    assert "INTERNALERROR" not in output
    assert sample.processes() == []


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what must come, one minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rank_and_variable(name: str) -> tuple[int, str]:
    return rank_of_process(), os.environ[name]


def fail_on_last_rank() -> None:
    if rank_of_process() == 1:
        raise ValueError("only on the last rank")


def sleep_for_ever() -> None:
    time.sleep(1000)


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
def test_own_launch_returns_results_in_rank_order(launcher: Launcher) -> None:
    results = own_launch.run(rank_and_variable, "COLOUR", launcher=launcher, env={"COLOUR": "green"})
    assert results == [(0, "green"), (1, "green")]


def test_own_launch_fails_with_the_traceback_of_the_rank() -> None:
    with pytest.raises(own_launch.LaunchFailed, match="ValueError: only on the last rank"):
        own_launch.run(fail_on_last_rank)


def test_own_launch_fails_by_time_out_with_stacks() -> None:
    with pytest.raises(own_launch.LaunchFailed, match="in sleep_for_ever"):
        own_launch.run(sleep_for_ever, seconds=3)
