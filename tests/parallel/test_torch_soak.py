"""Some minutes of the long training in which whatever may change does."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from tests.parallel import own_launch

pytestmark = pytest.mark.own_launch


def soak(*arguments: str) -> tuple[int, str]:
    """Return status and output of the command on this rank."""
    from tests.soak import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        return main(arguments), printed.getvalue()


def test_ranks_stay_equal_and_memory_flat_whatever_changes() -> None:
    first, second = own_launch.run(soak, "--seconds", "165", "--seed", "1", seconds=400)
    assert (first[0], second) == (0, (0, ""))
    found = json.loads(first[1])
    assert found["differences"] == 0
    assert found["steps"] >= 1000
    assert {"topk", "randomk", "qsgd", "jointsq", "none"} <= set(found["codecs"])
    assert min(found[name] for name in ("reconfigurations", "flushes", "overflows", "missing_gradients")) >= 10
    assert found["rss_end_mib"] - found["rss_start_mib"] <= 20
    assert found["files_end"] == found["files_start"]
    assert found["threads_end"] == found["threads_start"]
