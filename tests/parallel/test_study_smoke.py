"""The two studies as a stranger would try them: one command each, on real workers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_compress.study.database import load_records, sqlite_url
from hvd_compress.study.options import Options
from tests.parallel.ranks import REPOSITORY

pytestmark = pytest.mark.own_launch

LIMIT_SECONDS = 900.0
"""How long one may take on a machine that does other things too; one minute is usual."""


@pytest.mark.parametrize("task", ["lm", "vision"])
def test_smoke_preset_trains_every_cell_and_repeats_nothing(task: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hvd_compress", "study", task, "--preset=smoke", f"--out={tmp_path}", "--json"]
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=env) for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert second.stdout == first.stdout
    assert second.stderr == ""
    rows, plan = json.loads(first.stdout), Options(task, "smoke", "").plan
    assert all((row["trials"], row["seeds"]) == (plan.trials, plan.seeds) for row in rows)
    records = load_records(sqlite_url(tmp_path / "study.db"))
    assert len(records) == len(rows) * (plan.trials + plan.seeds)
    assert all(record.ranks_equal for record in records)
    assert {record.workers for record in records} == {1, 2}
    for record in records:
        # The compressor worked with one worker too.
        assert (record.traffic.compressed_ratio > 2) is (record.method != "none")
        assert record.traffic.sent_bytes > 0
        assert math.isnan(record.validation_score) or record.best_step > 0
