"""The main job on several processes: resuming, sharing the data, what it counts, and what it says when misused."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from hvd_compress.launch import Launcher, run_workers
from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import read_lines
from hvd_compress.study.errors import UsageError
from hvd_compress.study.results import RunResult
from tests.parallel.own_launch import run

pytestmark = pytest.mark.own_launch

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train_lm.py"
VERSES = 80
SECONDS = 300.0
"""How long a launch may take; less than 20 on an idle machine, but a test suite may not have one."""
RESUMED = ("none", "topk:density=0.01", "randomk:density=0.05")


def settings(folder: Path) -> TrainConfig:
    """Short steps on a text of which 20 steps see more than one epoch."""
    text = folder / "verses.txt"
    text.write_text("\n".join(read_lines()[:VERSES]), encoding="utf-8")
    return TrainConfig(data=text, steps=20, batch_size=8, sequence_length=12, dropout=0.2, evaluate_every=5)


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return settings(tmp_path)


class Halves(NamedTuple):
    """Results of 20 steps, of the first 10, and of the next 10 in new processes."""

    straight: RunResult
    first: RunResult
    second: RunResult


def straight_and_first_half(configs: list[TrainConfig]) -> list[tuple[RunResult, RunResult]]:
    from hvd_compress.study.training import train

    return [(train(replace(c, checkpoint=None)), train(replace(c, steps=10, checkpoint_every=4))) for c in configs]


def second_half(configs: list[TrainConfig]) -> list[RunResult]:
    from hvd_compress.study.training import train

    return [train(replace(config, resume=True)) for config in configs]


@pytest.fixture(scope="module", params=["mpi", "gloo"])
def halves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Halves]]:
    """For each compression, every rank's results; one launch for all that comes before the interruption, one after."""
    folder = tmp_path_factory.mktemp("resume")
    configs = [
        replace(settings(folder), compression=text, checkpoint=folder / str(i)) for i, text in enumerate(RESUMED)
    ]
    before = run(straight_and_first_half, configs, launcher=request.param)
    for config in configs:
        assert config.checkpoint is not None
        names = {path.name for path in config.checkpoint.iterdir()}
        assert names == {"step-00000010-rank-0.pt", "step-00000010-rank-1.pt"}
        # An interruption while step 11 was being saved: only one rank has written its file.
        shutil.copy(config.checkpoint / "step-00000010-rank-1.pt", config.checkpoint / "step-00000011-rank-0.pt")
    after = run(second_half, configs, launcher=request.param, seconds=SECONDS)
    ranks = list(zip(before, after, strict=True))
    return {
        text: [Halves(first[i][0], first[i][1], second[i]) for first, second in ranks] for i, text in enumerate(RESUMED)
    }


@pytest.mark.parametrize("compression", RESUMED)
def test_resume_equals_no_interruption_bit_for_bit(halves: dict[str, list[Halves]], compression: str) -> None:
    for straight, first, second in halves[compression]:
        assert straight.parameters_equal
        assert first.parameter_crc32 != straight.parameter_crc32
        assert second.parameter_crc32 == straight.parameter_crc32
        assert second.curve == straight.curve
        assert second.test_perplexity == straight.test_perplexity


def resumed_otherwise(config: TrainConfig, folder: Path) -> str:
    from hvd_compress.study.training import train

    train(replace(config, steps=1, checkpoint=folder))
    with pytest.raises(UsageError) as caught:
        train(replace(config, checkpoint=folder, resume=True, seed=5))
    return str(caught.value)


def test_checkpoint_is_refused_under_other_settings_or_workers(config: TrainConfig, tmp_path: Path) -> None:
    messages = run(resumed_otherwise, config, tmp_path / "checkpoint", seconds=SECONDS)
    assert messages[0] == messages[1]
    assert "seed 0 (now 5); resume with the same settings" in messages[0]
    (message,) = run(refusal_to_resume, config, tmp_path / "checkpoint", workers=1)
    assert "workers 2 (now 1)" in message


def refusal_to_resume(config: TrainConfig, folder: Path) -> str:
    from hvd_compress.study.training import train

    with pytest.raises(UsageError) as caught:
        train(replace(config, checkpoint=folder, resume=True))
    return str(caught.value)


def trained(*configs: TrainConfig) -> list[RunResult]:
    from hvd_compress.study.training import train

    return [train(config) for config in configs]


def test_four_workers_together_learn_what_one_worker_learns(config: TrainConfig) -> None:
    config = replace(config, dropout=0.0)
    alone, together = (run(trained, config, workers=workers, seconds=SECONDS)[0][0] for workers in (1, 4))
    assert alone.curve[-1].validation_perplexity < alone.curve[0].validation_perplexity
    for point, expected in zip(together.curve, alone.curve, strict=True):
        assert point.train_loss == pytest.approx(expected.train_loss, rel=1e-4)
        assert point.validation_perplexity == pytest.approx(expected.validation_perplexity, rel=1e-3)


@pytest.mark.parametrize("workers", [2, 4])
def test_bytes_and_ratios_are_those_of_the_compressor(config: TrainConfig, workers: int) -> None:
    texts = ("none", "fp16", "topk:density=0.01", "cast:dtype=float16")
    configs = [replace(config, compression=text, steps=8) for text in texts]
    for results in run(trained, *configs, workers=workers, seconds=SECONDS):
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


def answers_to(wrong_lines: list[list[str]]) -> list[tuple[int, str]]:
    main, answers = runpy.run_path(str(SCRIPT))["main"], []
    for line in wrong_lines:
        with contextlib.redirect_stderr(io.StringIO()) as printed, mock.patch.object(sys, "argv", ["train_lm", *line]):
            answers.append((main(), printed.getvalue()))
    return answers


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
    first, second = run(answers_to, list(expected.values()), seconds=SECONDS)
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


def test_one_plain_process_says_that_compression_is_idle(config: TrainConfig) -> None:
    command = [sys.executable, str(SCRIPT), "--compression", "topk:density=0.01", "--data", str(config.data)]
    command += ["--steps", "3", "--batch-size", "8", "--sequence-length", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall("compression is idle", done.stdout)) == 1
    assert "0 bytes a step and worker" in done.stdout
    assert "\x1b" not in done.stdout
