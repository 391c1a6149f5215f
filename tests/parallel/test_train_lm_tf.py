"""The main job in TensorFlow; what it shares with torch's is tested there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from hvd_compress.study.config import TrainConfig
from hvd_compress.study.frameworks import learner_of
from hvd_compress.study.results import RunResult
from tests.parallel.own_launch import run
from tests.parallel.short_run import (
    LIMIT_SECONDS,
    Results,
    answers_to,
    assert_same_course,
    continued,
    short_run,
    trained,
)

pytestmark = pytest.mark.own_launch

TOPK = "topk:density=0.01"
METHODS = ("none", TOPK, "dgc:density=0.01,momentum=0.3", "jointsq:bits_per_entry=0.32")
WRONG = {
    "nosuch": ["--nosuch"],
    "density": ["--compression", "topk:density=7"],
    "resume needs": ["--resume"],
}


class Seen(NamedTuple):
    """What one launch for several tests has seen on a rank."""

    results: list[RunResult]
    answers: list[tuple[int, str]]
    traces: int


def look(config: TrainConfig) -> Seen:
    configs = [config, replace(config, compression="fp16", steps=3)]
    answers = answers_to("train_lm_tf.py", list(WRONG.values()))
    return Seen(trained("tensorflow", configs), answers, traces(config))


def traces(config: TrainConfig) -> int:
    learner: Any = learner_of("tensorflow")(config, 100, learner_of("tensorflow").compressions.from_config(TOPK))
    columns = config.batch_size // learner.horovod.size()
    learner.state = learner.initial_state(columns)
    for rate in (1.0, 0.5):
        learner.learn(np.zeros((config.sequence_length + 1, columns), np.int64), rate)
    return int(learner._step.experimental_get_tracing_count())


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    return replace(short_run(tmp_path_factory.mktemp("text")), dropout=0.0)


@pytest.fixture(scope="module")
def seen(config: TrainConfig) -> list[Seen]:
    return run(look, config, seconds=LIMIT_SECONDS)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    return continued("tensorflow", METHODS, tmp_path_factory.mktemp("resume"))


@pytest.mark.parametrize("compression", METHODS)
def test_resume_equals_no_interruption_bit_for_bit(pairs: tuple[Results, Results], compression: str) -> None:
    straight, again = pairs
    assert_same_course(straight[compression], again[compression])


def test_bytes_and_times_are_those_of_the_compressor(pairs: tuple[Results, Results], seen: list[Seen]) -> None:
    for ranks in pairs[0].values():
        for result in ranks:
            traffic, spent = result.traffic, result.milliseconds
            assert traffic.dense_bytes == 4 * result.parameters
            assert result.curve[-1].sent_bytes == 20 * traffic.sent_bytes
            assert (min(spent.encode, spent.decode) > 0) == (traffic.gathered_bytes > 0)
            assert 0 < spent.wait < spent.step
    assert pairs[0][TOPK][0].traffic.compressed_ratio > 70
    none, half = (result.traffic for result in seen[0].results)
    assert (none.sent_bytes, half.sent_bytes) == (none.dense_bytes, none.dense_bytes // 2)


def test_two_workers_together_learn_what_one_worker_learns(config: TrainConfig, seen: list[Seen]) -> None:
    ((alone,),) = run(trained, "tensorflow", [config], workers=1, seconds=LIMIT_SECONDS)
    assert alone.curve[-1].validation_perplexity < alone.curve[0].validation_perplexity
    for point, expected in zip(seen[0].results[0].curve, alone.curve, strict=True):
        assert point.train_loss == pytest.approx(expected.train_loss, rel=1e-4)
        assert point.validation_perplexity == pytest.approx(expected.validation_perplexity, rel=1e-3)


def test_steps_are_traced_once(seen: list[Seen]) -> None:
    assert [rank.traces for rank in seen] == [1, 1]


def test_wrong_usage_is_one_sentence_by_rank_0_and_status_2_on_all_ranks(seen: list[Seen]) -> None:
    first, second = (rank.answers for rank in seen)
    assert second == [(2, "")] * len(WRONG)
    for part, (status, text) in zip(WRONG, first, strict=True):
        assert status == 2
        assert part in text
        assert text.startswith("error: ")
