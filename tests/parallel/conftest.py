"""Tests that run on several ranks, written as ordinary test functions that every rank calls.

A file says how it is launched, ``pytestmark = pytest.mark.launches(("mpi", 2), ("gloo", 2))``, and is then one launch
for each launcher and rank count; its cases take the fixtures ``hvd``, ``rank``, ``world`` and ``gather``. A case has
60 seconds, or what ``watchdog(seconds)`` says, and none of its ranks may skip it. A test that needs processes of its
own (other environment, several phases) is marked ``own_launch``, runs in the process that a person starts, and calls
`own_launch.run`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.parallel.harness import FOLDER, Folder, Launch
from tests.parallel.inner import RankPlugin
from tests.parallel.outer import OuterPlugin

MARKERS = (
    "launches(*(launcher, workers)): run the case on every rank of these launches",
    "own_launch: the test starts its own processes",
    "watchdog(seconds): the limit of the case's own time instead of 60 seconds",
)


def pytest_configure(config: pytest.Config) -> None:
    """Take the part of a rank inside a launch, and the outer part otherwise."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    folder = os.environ.get(FOLDER)
    config.pluginmanager.register(RankPlugin(Folder(Path(folder))) if folder else OuterPlugin())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one case for each launch; a rank has those of its own launch only, under the same names."""
    mark = metafunc.definition.get_closest_marker("launches")
    if mark is None or metafunc.definition.get_closest_marker("own_launch"):
        return
    launches = [Launch(*pair) for pair in mark.args]
    folder = os.environ.get(FOLDER)
    if folder:
        launches = [Folder(Path(folder)).plan()[0]]
    metafunc.parametrize("launch", launches, ids=str, indirect=True)


# The scope is what makes pytest order a file's cases by launch.
@pytest.fixture(autouse=True, scope="module")
def launch(request: pytest.FixtureRequest) -> Launch | None:
    """The launch that the case runs in."""
    return getattr(request, "param", None)


@pytest.fixture(scope="session")
def hvd() -> Iterator[ModuleType]:
    """``horovod.torch``, initialised once for each launch."""
    if FOLDER not in os.environ:
        pytest.fail("a case with several ranks needs pytest.mark.launches")
    import horovod.torch

    horovod.torch.init()
    yield horovod.torch
    horovod.torch.shutdown()


@pytest.fixture
def rank(hvd: Any) -> int:
    """This process's rank."""
    return int(hvd.rank())


@pytest.fixture
def world(hvd: Any) -> int:
    """The number of ranks."""
    return int(hvd.size())


@pytest.fixture
def gather(hvd: Any) -> Callable[[Any], list[Any]]:
    """A function that returns every rank's object, in rank order, to every rank."""

    def gather_by_rank(value: Any) -> list[Any]:
        return list(hvd.allgather_object(value, name="tests.gather"))

    return gather_by_rank


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every case from the same torch generator on every rank."""
    # Importing torch takes seconds, and not every file needs it.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
