"""The main job interrupted and continued in new processes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.results import RunResult
from tests.parallel.own_launch import run
from tests.parallel.short_run import LIMIT_SECONDS, refusal, resumed, short_run, straight_and_interrupted, trained

pytestmark = pytest.mark.own_launch

RESUMED = ("none", "topk:density=0.01", "randomk:density=0.05")
Results = dict[str, list[RunResult]]


@pytest.fixture(scope="module", params=["mpi", "gloo"])
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    """Every rank's results by compression, of 20 steps in one go and of 10 and 10; two launches for all."""
    folder = tmp_path_factory.mktemp("resume")
    config = short_run(folder)
    configs = [replace(config, compression=text, checkpoint=folder / text.partition(":")[0]) for text in RESUMED]
    straight = run(straight_and_interrupted, "torch", configs, launcher=request.param, seconds=LIMIT_SECONDS)
    for config in configs:
        assert config.checkpoint is not None
        names = {path.name for path in config.checkpoint.iterdir()}
        assert names == {"step-00000010-rank-0.pt", "step-00000010-rank-1.pt"}
        # The job may also die while it saves: then only one rank has written its file.
        shutil.copy(config.checkpoint / "step-00000010-rank-1.pt", config.checkpoint / "step-00000011-rank-0.pt")
    again = run(resumed, "torch", configs, launcher=request.param, seconds=LIMIT_SECONDS)
    return by_compression(straight), by_compression(again)


def by_compression(ranks: list[list[RunResult]]) -> Results:
    return {text: [results[i] for results in ranks] for i, text in enumerate(RESUMED)}


@pytest.mark.parametrize("compression", RESUMED)
def test_resume_equals_no_interruption_bit_for_bit(pairs: tuple[Results, Results], compression: str) -> None:
    for straight, again in zip(*(results[compression] for results in pairs), strict=True):
        assert straight.parameters_equal
        assert again.parameter_crc32 == straight.parameter_crc32
        assert again.curve == straight.curve
        assert again.test_perplexity == straight.test_perplexity


def resumed_otherwise(config: TrainConfig) -> str:
    trained("torch", [config])
    return refusal("torch", replace(config, resume=True, seed=5))


def test_checkpoint_is_refused_under_other_settings_or_workers(tmp_path: Path) -> None:
    config = replace(short_run(tmp_path), steps=2, checkpoint=tmp_path / "checkpoint")
    messages = run(resumed_otherwise, config, seconds=LIMIT_SECONDS)
    assert messages[0] == messages[1]
    assert "seed 0 (now 5); resume with the same settings" in messages[0]
    (message,) = run(refusal, "torch", replace(config, resume=True), workers=1)
    assert "workers 2 (now 1)" in message
