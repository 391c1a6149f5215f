"""The main job on several processes: sharing the data, what it counts, and what it says when misused."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_compress.launch import Launcher, run_workers
from hvd_compress.study.config import TrainConfig
from tests.parallel.own_launch import run
from tests.parallel.short_run import LIMIT_SECONDS, SCRIPTS, answers_to, short_run, trained

pytestmark = pytest.mark.own_launch

SCRIPT = SCRIPTS / "train_lm.py"


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return short_run(tmp_path)


def test_four_workers_together_learn_what_one_worker_learns(config: TrainConfig) -> None:
    config = replace(config, dropout=0.0)
    alone, together = (
        run(trained, "torch", [config], workers=workers, seconds=LIMIT_SECONDS)[0][0] for workers in (1, 4)
    )
    assert alone.curve[-1].validation_perplexity < alone.curve[0].validation_perplexity
    for point, expected in zip(together.curve, alone.curve, strict=True):
        assert point.train_loss == pytest.approx(expected.train_loss, rel=1e-4)
        assert point.validation_perplexity == pytest.approx(expected.validation_perplexity, rel=1e-3)


@pytest.mark.parametrize("workers", [2, 4])
def test_bytes_and_ratios_are_those_of_the_compressor(config: TrainConfig, workers: int) -> None:
    texts = ("none", "fp16", "topk:density=0.01", "cast:dtype=float16")
    configs = [replace(config, compression=text, steps=8) for text in texts]
    for results in run(trained, "torch", configs, workers=workers, seconds=LIMIT_SECONDS):
        none, half, topk, cast = (result.traffic for result in results)
        assert all(result.parameters_equal for result in results)
        assert len(results[0].parameter_crc32) == workers
        dense = 4 * results[0].parameters
        assert {traffic.dense_bytes for traffic in (none, half, topk, cast)} == {dense}
        assert (none.sent_bytes, half.sent_bytes) == (dense, dense // 2)
        assert (none.compressed_ratio, half.compressed_ratio) == (1.0, 2.0)
        assert 70 <= topk.compressed_ratio <= 80
        assert topk.gathered_bytes == topk.compressed_sent_bytes
        assert cast.compressed_ratio == pytest.approx(2.0)
        assert cast.gathered_bytes == 0
        assert results[2].curve[-1].sent_bytes == 8 * topk.sent_bytes


def test_wrong_usage_is_one_sentence_by_rank_0_and_status_2_on_all_ranks(config: TrainConfig, tmp_path: Path) -> None:
    expected = {
        "nosuch": ["--nosuch"],
        "invalid int value: 'many'": ["--steps", "many"],
        "steps must be at least 1, got 0": ["--steps", "0"],
        "compression 'nosuch'": ["--compression", "nosuch"],
        "density": ["--compression", "topk:density=7"],
        "size must be one of small, medium, large, got 'huge'": ["--size", "huge"],
        "cannot read the data file": ["--data", str(tmp_path / "missing.txt")],
        "batch_size must be a multiple": ["--data", str(config.data), "--batch-size", "7"],
        "a step needs": ["--data", str(config.data), "--batch-size", "5000"],
        "cannot make the folder": ["--data", str(config.data), "--out", f"{config.data}/deeper"],
        "resume needs": ["--resume"],
        "no checkpoint of 2 workers": ["--data", str(config.data), "--checkpoint", str(tmp_path / "none"), "--resume"],
    }
    first, second = run(answers_to, SCRIPT.name, list(expected.values()), seconds=LIMIT_SECONDS)
    assert second == [(2, "")] * len(expected)
    for part, (status, text) in zip(expected, first, strict=True):
        assert status == 2
        assert part in text
        assert text.startswith("error: ")
        assert text.count("\n") == 1


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
def test_launcher_passes_the_sentence_and_a_failure_on(launcher: Launcher) -> None:
    command = [sys.executable, str(SCRIPT), "--compression", "nosuch"]
    done = run_workers(command, workers=2, launcher=launcher, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == (2 if launcher == "mpi" else 1)
    assert done.stdout.decode().count("error: compression 'nosuch'") == 1


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
@pytest.mark.parametrize("script", ["train_lm.py", "train_lm_tf.py"])
def test_examples_train_under_both_launchers_and_say_what_came_of_it(
    config: TrainConfig, script: str, launcher: Launcher
) -> None:
    """F116."""
    command = [sys.executable, str(SCRIPTS / script), "--compression", "topk:density=0.01", "--data", str(config.data)]
    command += ["--steps", "3", "--batch-size", "8", "--sequence-length", "12"]
    done = run_workers(
        command, workers=2, launcher=launcher, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said = done.stdout.decode()
    assert done.returncode == 0, said
    assert len(re.findall(r"test perplexity \d+\.\d\d, [\d,]+ bytes a step and worker \(\d+\.\d times less", said)) == 1


def test_one_plain_process_says_that_compression_is_idle(config: TrainConfig) -> None:
    command = [sys.executable, str(SCRIPT), "--compression", "topk:density=0.01", "--data", str(config.data)]
    command += ["--steps", "3", "--batch-size", "8", "--sequence-length", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall("compression is idle", done.stdout)) == 1
    assert "0 bytes a step and worker" in done.stdout
    assert "\x1b" not in done.stdout
