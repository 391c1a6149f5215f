"""The main job interrupted and continued in new processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hvd_compress.study.config import TrainConfig
from tests.parallel.own_launch import run
from tests.parallel.short_run import LIMIT_SECONDS, Results, assert_same_course, continued, refusal, short_run, trained

pytestmark = pytest.mark.own_launch

RESUMED = ("none", "topk:density=0.01", "randomk:density=0.05")


@pytest.fixture(scope="module", params=["mpi", "gloo"])
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    return continued("torch", RESUMED, tmp_path_factory.mktemp("resume"), request.param)


@pytest.mark.parametrize("compression", RESUMED)
def test_resume_equals_no_interruption_bit_for_bit(pairs: tuple[Results, Results], compression: str) -> None:
    straight, again = pairs
    assert_same_course(straight[compression], again[compression])


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
