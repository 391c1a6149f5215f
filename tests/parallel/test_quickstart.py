"""The quickstart from end to end, shortened to a few steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_compress.study.quickstart import METHODS
from hvd_compress.study.results import RunResult

pytestmark = pytest.mark.own_launch

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "quickstart.py"


def quickstart(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=500, check=False
    )


@pytest.mark.parametrize(
    ("options", "parameters"),
    [([], 1_161_600), (["--gloo"], 1_161_600), (["--framework", "tensorflow"], 1_160_800)],
    ids=["mpi", "gloo", "tensorflow"],
)
def test_quickstart_compares_methods_in_table_and_picture(options: list[str], parameters: int, tmp_path: Path) -> None:
    done = quickstart("--steps", "2", "--methods", "dense,top-k", "--out", str(tmp_path / "new"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    dense, topk = (RunResult.load(tmp_path / "new" / method) for method in ("dense", "top-k"))
    assert (dense.workers, dense.parameters) == (topk.workers, topk.parameters) == (2, parameters)
    assert dense.traffic.sent_bytes == dense.traffic.dense_bytes == topk.traffic.dense_bytes
    assert topk.traffic.compressed_ratio >= 70
    assert min(topk.milliseconds.encode, topk.milliseconds.decode) > 0
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert ["test perplexity", f"{dense.test_perplexity:.2f}", f"{topk.test_perplexity:.2f}"] in cells
    assert ["bytes a step and worker", f"{4 * parameters:,}", f"{topk.traffic.sent_bytes:,}"] in cells
    assert "at 1 Gbit/s" in done.stdout
    (picture,) = [line.removeprefix("Picture: ") for line in done.stdout.splitlines() if line.startswith("Picture: ")]
    assert Path(picture).read_bytes().startswith(b"\x89PNG")
    # Nobody watches: no bar, no colours.
    assert "\x1b" not in done.stdout
    # Nothing of what TensorFlow has to say when it starts, which horovodrun does by itself.
    assert "cuda" not in done.stderr or "--gloo" in options


def test_quickstart_trains_with_all_methods_by_default(tmp_path: Path) -> None:
    """F116."""
    done = quickstart("--steps", "2", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    ratios = [RunResult.load(tmp_path / method).traffic.compressed_ratio for method in METHODS]
    assert ratios[0] == 1
    assert min(ratios[1:]) >= 70
    assert "with jointsq is" in done.stdout


def test_quickstart_fails_when_a_run_fails(tmp_path: Path) -> None:
    done = quickstart("--steps", "2", "--out", str(tmp_path), OMPI_MCA_btl="nosuch")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: training with none ended with status")
    assert "Picture" not in done.stdout
