"""bench --advise in a job: the link is measured there, rank 0 alone speaks, all ranks end together."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hvd_compress.launch import run_workers

pytestmark = pytest.mark.own_launch


def advise(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "hvd_compress", "bench", "--advise", "--seconds", "0.02", *arguments]
    return run_workers(argv, workers=2, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_link_is_measured_and_one_rank_prints() -> None:
    """F095."""
    done = advise("--n", "1e5", "--codecs", "topk:density=0.01", "qsgd:bits=8", "--json")
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert (told["workers"], told["tensors"], told["link"].pop("measured")) == (2, [100_000], True)
    assert told["link"].keys() == {"allreduce", "allreduce_fp16", "allgather"}
    assert all(line["latency_ms"] >= 0 for line in told["link"].values())
    assert [row["codec"] for row in told["codecs"]] == ["dense", "fp16", "topk:density=0.01", "qsgd:bits=8"]
    assert [row["payload_bytes"] for row in told["codecs"]][:2] == [400_000, 200_000]
    verdicts = [row["verdict"] for row in told["codecs"]]
    assert verdicts[0] == "baseline"
    assert set(verdicts[1:]) <= {"faster", "slower", "depends"}


def test_what_is_wrong_is_said_once_and_ends_all_ranks() -> None:
    done = advise("--n", "1e5", "--workers", "3")
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"error: --workers: this job has 2, got 3") == 1
