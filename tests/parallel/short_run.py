"""Training runs that take seconds, for the tests of the training scripts; what stands here runs on the ranks too."""

from __future__ import annotations

import contextlib
import io
import runpy
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hvd_compress.launch import Launcher
from hvd_compress.study.checkpoint import Checkpoints
from hvd_compress.study.config import TrainConfig
from hvd_compress.study.data import read_lines
from hvd_compress.study.errors import UsageError
from hvd_compress.study.frameworks import Framework, learner_of
from hvd_compress.study.results import RunResult
from hvd_compress.study.trainer import Trainer
from hvd_compress.study.training import train
from tests.parallel.own_launch import run

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
VERSES = 80

LIMIT_SECONDS = 300.0
"""How long a launch of a few runs may take; less than 20 on an idle machine, but a test suite may not have one."""


Results = dict[str, list[RunResult]]
"""Every rank's result by compression."""


class Interrupted(Exception):
    """Ends a run in the middle."""


def short_run(folder: Path) -> TrainConfig:
    """Settings of 20 steps on a text, written into the folder, of which these see more than one epoch."""
    text = folder / "verses.txt"
    text.write_text("\n".join(read_lines()[:VERSES]), encoding="utf-8")
    return TrainConfig(data=text, steps=20, batch_size=8, sequence_length=12, dropout=0.2, evaluate_every=5)


def trained(framework: Framework, configs: list[TrainConfig]) -> list[RunResult]:
    """Train with each of the settings, one after the other."""
    return [train(config, learner_of(framework)) for config in configs]


def straight_and_interrupted(framework: Framework, configs: list[TrainConfig]) -> list[RunResult]:
    """Return the results of all steps in one go, and leave checkpoints of runs that end after 10 steps."""
    save = Checkpoints.save

    def save_and_stop(self: Checkpoints, step: int, state: dict[str, Any]) -> None:
        save(self, step, state)
        if step == 10:
            raise Interrupted

    straight = trained(framework, [replace(config, checkpoint=None) for config in configs])
    for config in configs:
        with mock.patch.object(Checkpoints, "save", save_and_stop), pytest.raises(Interrupted):
            trained(framework, [replace(config, checkpoint_every=5)])
    return straight


def resumed(framework: Framework, configs: list[TrainConfig]) -> list[RunResult]:
    """Return the results of the runs that `straight_and_interrupted` left."""
    results = []
    for config in configs:
        with mock.patch.object(Trainer, "train_step", autospec=True, side_effect=Trainer.train_step) as step:
            results += trained(framework, [replace(config, resume=True)])
        assert step.call_count == 10
    return results


def continued(
    framework: Framework, texts: Sequence[str], folder: Path, launcher: Launcher = "mpi"
) -> tuple[Results, Results]:
    """Return the results of 20 steps in one go, and of 10 and 10 in other processes; two launches for all texts."""
    config = short_run(folder)
    configs = [replace(config, compression=text, checkpoint=folder / text.partition(":")[0]) for text in texts]
    straight = run(straight_and_interrupted, framework, configs, launcher=launcher, seconds=LIMIT_SECONDS)
    for config in configs:
        assert config.checkpoint is not None
        first, second = sorted(config.checkpoint.iterdir())
        assert [first.stem, second.stem] == ["step-00000010-rank-0", "step-00000010-rank-1"]
        # The job may also die while it saves: then only one rank has written its file.
        shutil.copy(second, first.with_stem("step-00000011-rank-0"))
    again = run(resumed, framework, configs, launcher=launcher, seconds=LIMIT_SECONDS)
    return by_compression(texts, straight), by_compression(texts, again)


def by_compression(texts: Sequence[str], ranks: list[list[RunResult]]) -> Results:
    """Order what every rank has returned."""
    return {text: [results[i] for results in ranks] for i, text in enumerate(texts)}


def assert_same_course(straight: list[RunResult], again: list[RunResult]) -> None:
    """Check on every rank that a run that was continued gave the same bits as one in one go."""
    for whole, parts in zip(straight, again, strict=True):
        assert whole.parameters_equal
        assert parts.parameter_crc32 == whole.parameter_crc32
        assert parts.curve == whole.curve
        assert parts.test_perplexity == whole.test_perplexity


def refusal(framework: Framework, config: TrainConfig) -> str:
    """Return what a run says that cannot work."""
    with pytest.raises(UsageError) as caught:
        trained(framework, [config])
    return str(caught.value)


def answers_to(script: str, wrong_lines: list[list[str]]) -> list[tuple[int, str]]:
    """Return exit status and message of a training script for each command line."""
    main, answers = runpy.run_path(str(SCRIPTS / script))["main"], []
    for line in wrong_lines:
        with contextlib.redirect_stderr(io.StringIO()) as printed, mock.patch.object(sys, "argv", [script, *line]):
            answers.append((main(), printed.getvalue()))
    return answers
