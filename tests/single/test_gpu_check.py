"""scripts/gpu_check.sh where there is no GPU: that it says so, and what it does, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"


def check(folder: Path, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    argv = ["bash", str(SCRIPT), "--out", "found.json", *arguments]
    env = {**os.environ, "PYTHON": python}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"gpu_check.sh: there is no GPU here that torch {torch.__version__} can use\n"
    assert list(tmp_path.iterdir()) == []


def test_tests_and_figures_go_into_one_file(tmp_path: Path) -> None:
    done = check(tmp_path, "--device", "cpu", "--select", "wire_round_trips and qsgd", "--entries", "1e3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All is well; results: found.json" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["ok"], found["device"], list(found["bench"])) == (True, "cpu", ["without_triton"])
    assert found["machine"]["packages"]["torch"] == torch.__version__
    assert found["tests"]["passed"] == found["tests"]["collected"] > 10
    assert [found["tests"][key] for key in ("failed", "skipped", "complete", "failures")] == [0, 0, True, []]
    rows = found["bench"]["without_triton"]["rows"]
    assert {row["n"] for row in rows} == {1000}
    assert {"topk:density=0.01", "qsgd:bits=4", "jointsq:bits_per_entry=0.32"} < {row["codec"] for row in rows}


def test_too_little_time_is_no_success(tmp_path: Path) -> None:
    done = check(
        tmp_path, "--device", "cpu", "--seconds", "3", "--select", "backends_give and device", "--entries", "1e3"
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT all is well" in done.stdout
    assert not found["tests"]["complete"]
    assert found["tests"]["passed"] < found["tests"]["collected"]


def test_a_test_that_is_not_there_is_no_success(tmp_path: Path) -> None:
    done = check(tmp_path, "--device", "cpu", "--select", "no_such_test", "--entries", "1e3")
    assert done.returncode == 1
    assert json.loads((tmp_path / "found.json").read_text())["tests"]["collected"] == 0


@pytest.mark.parametrize("arguments", [("--device", "tpu"), ("--seconds", "x"), ("--nosuch",)])
def test_wrong_usage_exits_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = check(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[-1].lstrip("-") in done.stderr


def test_a_python_without_the_packages_is_wrong_usage(tmp_path: Path) -> None:
    base: str = sys._base_executable  # type: ignore[attr-defined]
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {base} -S "$@"\n')
    bare.chmod(0o755)
    done = check(tmp_path, python=str(bare))
    assert done.returncode == 2
    assert "lacks numpy, torch, pytest, rich; name another in PYTHON" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_contract_suite_fails_in_one_sentence_without_the_device_that_is_asked_for() -> None:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--device",
        "cuda",
        "tests/single/test_contract.py",
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    said = (done.stdout + done.stderr).strip().splitlines()
    assert done.returncode == 4
    assert said == [f"ERROR: --device cuda: torch {torch.__version__} sees no such device here"]
