"""A rank dies, is stopped, is out of memory or receives what is damaged: all end, or go on, and nothing is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvd_compress.launch import Launcher
from tests.parallel.faults import BROKEN, LIMIT_SECONDS, STEPS, WORKERS, Run, read, started

pytestmark = pytest.mark.own_launch

CODECS = {
    "topk": "topk:density=0.1",
    "randomk": "randomk:density=0.1",
    "dgc": "dgc:density=0.1,momentum=0.5",
    "qsgd": "qsgd",
}

STOP_SECONDS = float(os.environ.get("HVD_COMPRESS_TEST_STOP_SECONDS", "5"))
"""How long a rank is stopped; scripts/test_faults.sh asks for more than the 60 seconds that Horovod calls a stall."""

SEEN = "exit with status code"
"""What horovodrun says of a rank whose status is not 0."""

Note = Callable[..., None]


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    """A function that notes a line of the table that scripts/test_faults.sh prints."""

    def note_line(fault: str, launcher: str, codec: str, seconds: float, until: str = "all had ended") -> None:
        record_property("fault", (fault, launcher, codec, seconds, until))

    return note_line


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Undo what a shell's '&' leaves to all that is below it: that SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def check_all_end(run: Run, fault: str, launcher: str, codec: str, note: Note) -> None:
    """Check that all processes end in time, none as if nothing had been, and leave nothing that is wrong."""
    seconds = run.wait_for_end(run.fault_at)
    note(fault, launcher, codec, seconds)
    assert seconds < LIMIT_SECONDS
    # horovodrun has two threads wait for a rank that it terminates after an interrupt, and the one that comes second
    # takes the status for 0 (subprocess.Popen.wait). It says which ranks it has seen end otherwise.
    unseen = (fault, launcher) == ("interrupted", "gloo") and SEEN not in run.folder.text("launcher.log")
    assert run.launcher.returncode != 0 or unseen
    assert run.ends() == []
    run.check_nothing_wrong_is_left()


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
@pytest.mark.parametrize(
    ("fault", "codec"),
    [
        ("killed", "topk"),
        ("killed", "randomk"),
        ("killed", "dgc"),
        ("exits", "topk"),
        ("exits with 0", "topk"),
    ],
)
def test_a_rank_that_dies_ends_all(fault: str, codec: str, launcher: Launcher, note: Note) -> None:
    with started(fault, CODECS[codec], launcher) as run:
        check_all_end(run, fault, launcher, codec, note)


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
@pytest.mark.parametrize("codec", CODECS)
def test_damage_on_the_way_ends_all(codec: str, launcher: Launcher, note: Note) -> None:
    with started("damaged payload", CODECS[codec], launcher) as run:
        check_all_end(run, "damaged payload", launcher, codec, note)
        words = run.last_words(1)
        assert words is not None
        assert words[1].startswith("CompressionError: ")


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
@pytest.mark.parametrize("codec", ["topk", "randomk"])
def test_a_rank_without_memory_ends_all(codec: str, launcher: Launcher, note: Note) -> None:
    with started("out of memory", CODECS[codec], launcher) as run:
        check_all_end(run, "out of memory", launcher, codec, note)
        words = run.last_words(1)
        assert words is not None
        assert words[1] == "MemoryError: "


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
@pytest.mark.parametrize("codec", ["topk", "randomk"])
def test_an_interrupt_ends_all(codec: str, launcher: Launcher, note: Note) -> None:
    with started("interrupted", CODECS[codec], launcher) as run:
        run.launcher.send_signal(signal.SIGINT)
        check_all_end(run, "interrupted", launcher, codec, note)


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
@pytest.mark.parametrize("codec", ["topk", "randomk"])
def test_training_goes_on_when_a_stopped_rank_does(codec: str, launcher: Launcher, note: Note) -> None:
    # Gloo gives up on a rank after 30 seconds unless it is told to wait.
    limit = f"{STOP_SECONDS + 60:.0f}"
    with started("stopped", CODECS[codec], launcher, HOROVOD_GLOO_TIMEOUT_SECONDS=limit) as run:
        time.sleep(STOP_SECONDS)
        assert f"step-{BROKEN}-rank-0" not in run.saved()
        os.kill(run.pid, signal.SIGCONT)
        continued_at = time.monotonic()
        run.wait_for_end(continued_at)
        went_on = max(read(run.folder.path / "broken" / f"went-on-{rank}") for rank in range(WORKERS)) - continued_at
        note(f"stopped for {STOP_SECONDS:g} s", launcher, codec, went_on, "training went on")
        assert run.launcher.returncode == 0, run.folder.text("launcher.log")
        first, second = run.ends()
        assert first == second
        assert run.saved() == run.saved("straight")
        assert len(run.saved()) == WORKERS * STEPS


def test_gloo_gives_up_on_a_rank_that_is_stopped_for_longer_than_its_limit(note: Note) -> None:
    with started("stopped", CODECS["topk"], "gloo", HOROVOD_GLOO_TIMEOUT_SECONDS="2") as run:
        check_all_end(run, "stopped for good", "gloo", "topk", note)


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["--fast"], 2), (["1", "2"], 2), (["1s"], 2)])
def test_script_says_how_it_is_used(arguments: list[str], status: int) -> None:
    script = Path(__file__).parents[2] / "scripts" / "test_faults.sh"
    done = subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == status
    assert "test_faults.sh" in (done.stderr if status else done.stdout)
