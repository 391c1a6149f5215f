"""The benchmark of exchanges inside a job that somebody else has started; test_cluster.py has it start its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_compress.bench.resnet50 import shapes
from hvd_compress.launch import run_workers

pytestmark = pytest.mark.own_launch

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench_exchange.py"
SECONDS = 240


def in_job(*arguments: str, workers: int = 2) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, str(BENCH), *arguments]
    return run_workers(command, workers=workers, timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_job_measures_resnet50_in_itself(tmp_path: Path) -> None:
    """F096."""
    done = in_job(
        "--methods=dense,fp16,dgc:momentum=0.5",
        "--tensors=161",
        "--steps=1",
        "--json",
        "--rates=lab",
        f"--out={tmp_path}",
    )
    assert done.returncode == 0, done.stderr.decode()
    rows = json.loads(done.stdout)
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    assert [row["method"] for row in rows] == ["dense", "fp16", "dgc:momentum=0.5"]
    # Both ranks are on this host.
    assert {(row["hosts"], row["rate"], row["n"], row["tensors"]) for row in rows} == {(1, "lab", 25_557_032, 161)}
    dense, half, dgc = rows
    assert (dense["payload_bytes"], half["payload_bytes"]) == (4 * 25_557_032, 2 * 25_557_032)
    small = sum(4 * shape[0] for shape in shapes().values() if len(shape) == 1)
    assert small < dgc["payload_bytes"] < small + 4 * 25_557_032 / 500
    assert min(half["encode_ms"], half["decode_ms"], dgc["encode_ms"], dgc["decode_ms"]) > 0
    for row in rows:
        parts = sum(row[f"{part}_ms"] for part in ("encode", "wait", "decode"))
        assert parts == pytest.approx(row["exchange_ms"], abs=0.1)


@pytest.mark.parametrize(("workers", "option", "part"), [(2, "--hosts=2", "--hosts"), (1, "--json", "at least two")])
def test_wrong_usage_in_a_job_is_one_sentence(workers: int, option: str, part: str, tmp_path: Path) -> None:
    done = in_job(option, f"--out={tmp_path}", workers=workers)
    assert done.returncode == 2
    sentences = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1
    assert part in sentences[0]


def test_overhead_is_what_the_step_takes_beyond_its_collectives() -> None:
    command = [sys.executable, str(BENCH.with_name("bench_overhead.py")), "--steps=3", "--json"]
    done = run_workers(command, workers=2, timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    row = json.loads(done.stdout)
    assert (row["ranks"], row["tensors"]) == (2, 161)
    assert 0 < row["collectives_ms"] < row["step_ms"]
    assert row["overhead_ms"] == pytest.approx(row["step_ms"] - row["collectives_ms"], abs=0.02)
