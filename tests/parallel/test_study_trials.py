"""Trials of a study on real workers: what they count, when they end, and what their records say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hvd_compress.study.cells import FINAL, Cell, Place
from hvd_compress.study.data import load_corpus
from hvd_compress.study.images import load_images
from hvd_compress.study.plans import Plan
from hvd_compress.study.records import Record
from hvd_compress.study.report.outcomes import study_of
from hvd_compress.study.report.page import write_report
from hvd_compress.study.workers import Workers
from tests.parallel.own_launch import run

pytestmark = pytest.mark.own_launch

LIMIT_SECONDS = 300.0
"""How long a launch of a few trials may take; 15 are usual."""

STEPS, LOOKS = 4, 3
TENSORS = 5
"""Compressed ones of the LSTM: the embedding and four matrices."""

SEAL = 8
TEXT = Plan(
    (), {}, batch_size=4, looks=LOOKS, search_looks=LOOKS, trials=1, seeds=1, look_steps=STEPS, sequence_length=12
)
PICTURES = Plan(
    (), {}, batch_size=16, looks=LOOKS, search_looks=LOOKS, trials=1, seeds=1, look_steps=STEPS, clip=1.0, momentum=0.9
)


def trained(
    model: str, method: str, setting: str, plan: Plan | None = None, **parameters: float
) -> tuple[Record, dict[str, Any]]:
    """On this rank: a record, and what its compressor counted."""
    # Imported here because only ranks may load Horovod.
    import horovod.torch as hvd

    from hvd_compress.study.torch_course import Course
    from hvd_compress.study.torch_trial import run_trial

    workers, courses = Workers(hvd), []
    task = "lm" if model.startswith(("lstm", "transformer")) else "vision"
    data: Any = load_corpus(limit=80) if task == "lm" else load_images().limited(100)
    plan = plan or (TEXT if task == "lm" else PICTURES)

    def note(course: Course, *arguments: Any, **more: Any) -> None:
        courses.append(course)
        begin(course, *arguments, **more)

    begin = Course.__init__
    cell = Cell("test", task, model, "little", workers.size, method, setting)
    with mock.patch.object(Course, "__init__", note):
        record = run_trial(
            cell, Place(FINAL, 0), {"learning_rate": 1.0, **parameters}, plan, data, workers, lambda *said: None
        )
    (course,) = courses
    counted = course.compression.stats().as_dict() if hasattr(course.compression, "stats") else {}
    return record, counted


def several(trials: list[tuple[str, str, str, Mapping[str, float]]]) -> list[tuple[Record, dict[str, Any]]]:
    """On this rank: one trial after the other, in the same process."""
    return [trained(model, method, setting, **parameters) for model, method, setting, parameters in trials]


def counted_calls(method: str, setting: str) -> tuple[Record, int]:
    """On this rank: how often Horovod called the compressor."""
    from hvd_compress.torch import Compressor

    with mock.patch.object(Compressor, "compress", autospec=True, side_effect=Compressor.compress) as compress:
        record, _ = trained("lstm-small", method, setting)
    return record, compress.call_count


def same_on_all(results: list[Record]) -> None:
    first, second = ({**record.as_dict(), "milliseconds": 0, "seconds": 0} for record in results)
    assert first == second


def test_one_worker_calls_the_compressor_for_every_gradient_of_every_step() -> None:
    ((record, calls),) = run(
        counted_calls, "topk", "0.01", workers=1, env={"HOROVOD_ELASTIC": "1"}, seconds=LIMIT_SECONDS
    )
    # Nine parameters: what is compressed, and four biases.
    assert calls == STEPS * LOOKS * (TENSORS + 4)
    assert record.traffic.compressed_ratio > 50
    assert record.milliseconds.encode > 0


def test_without_elastic_one_worker_would_not_be_compressed() -> None:
    ((record, calls),) = run(counted_calls, "topk", "0.01", workers=1, seconds=LIMIT_SECONDS)
    assert calls == 0
    assert record.traffic.sent_bytes == 0


def test_one_worker_without_compression_counts_the_bytes_that_elastic_horovod_exchanges() -> None:
    (((record, _),),) = run(
        several, [("lstm-small", "none", "", {})], workers=1, env={"HOROVOD_ELASTIC": "1"}, seconds=LIMIT_SECONDS
    )
    assert record.traffic.sent_bytes == record.traffic.dense_bytes == 4 * record.model_size


TRIALS: list[tuple[str, str, str, Mapping[str, float]]] = [
    ("lstm-small", "jointsq", "100x", {}),
    ("lstm-small", "topk", "100x", {}),
    ("lstm-small", "dgc", "100x", {"momentum": 0.5}),
    ("lstm-small", "topk_qsgd", "100x", {"dropout": 0.2}),
    ("lstm-small", "none", "", {"learning_rate": 1e30}),
    ("lstm-small", "topk", "0.01", {"learning_rate": math.inf}),
    ("lstm-small", "none", "", {}),
    ("transformer", "qsgd", "3bit", {}),
    ("resnet20", "topk", "0.01", {"learning_rate": 0.1}),
    ("vgg-small", "none", "", {"learning_rate": 0.1}),
    ("vit-small", "jointsq-values", "1000x", {"learning_rate": 0.1}),
    ("lstm-small", "powersgd", "rank=1", {}),
    ("lstm-small", "signsgd", "momentum=0.5", {}),
]


@pytest.fixture(scope="module")
def results() -> list[list[tuple[Record, dict[str, Any]]]]:
    """What each rank found in each trial, all of them in the same job."""
    ranks = run(several, TRIALS, seconds=LIMIT_SECONDS)
    return [[ranks[rank][number] for rank in range(2)] for number in range(len(TRIALS))]


def test_records_are_equal_on_all_ranks_and_so_are_the_parameters(results: Any) -> None:
    for trial, ((first, _), (second, _)) in zip(TRIALS, results, strict=True):
        assert first.ranks_equal, trial
        if not math.isnan(first.test_score) and trial[1] != "jointsq-values":
            same_on_all([first, second])


def test_bytes_are_those_that_the_compressor_counted(results: Any) -> None:
    for number in (0, 1, 2, 3, 7, 8, 10, 11, 12):
        for record, counted in results[number]:
            assert record.looks[-1].sent_bytes == counted["total"]["sent_bytes"] > 0
            assert counted["steps"] == STEPS * LOOKS
            if TRIALS[number][1] != "jointsq-values":
                assert record.traffic.sent_bytes * STEPS * LOOKS == counted["total"]["sent_bytes"]
                assert record.traffic.compressed_sent_bytes == counted["compressed"]["sent_bytes"] / (STEPS * LOOKS)


def test_methods_at_equal_bytes_send_equal_bytes(results: Any) -> None:
    sent = [results[number][0][0].traffic.compressed_sent_bytes for number in range(4)]
    target = results[0][0][0].traffic.compressed_dense_bytes / 100
    for nbytes in sent:
        assert nbytes == pytest.approx(target + TENSORS * SEAL, rel=0.01)


def test_a_report_shows_configs_of_codecs(results: Any, tmp_path: Path) -> None:
    records = [results[number][0][0] for number in (6, 11, 12)]
    assert [record.compression for record in records] == ["none", "powersgd:rank=1", "signsgd:momentum=0.5"]
    assert records[1].traffic.gathered_bytes == 0 < records[2].traffic.gathered_bytes
    page, *pictures = write_report(study_of(records), tmp_path)
    text = page.read_text(encoding="utf-8")
    assert all(label in text for label in ("PowerSGD rank=1", "SignSGD momentum=0.5"))
    assert any(path.name.startswith("perplexity-ratio") for path in pictures)


def test_a_diverged_trial_ends_early_and_the_next_one_is_not_hurt(results: Any) -> None:
    for number in (4, 5):
        record, _ = results[number][0]
        assert math.isnan(record.validation_score)
        assert math.isnan(record.test_score)
        assert len(record.looks) < LOOKS
        assert record.best_step == 0
    following, _ = results[6][0]
    assert following.best_step > 0
    assert 1 < following.test_score < 2000


def test_records_say_what_was_trained(results: Any) -> None:
    record, _ = results[2][0]
    assert (record.model, record.workers, record.method, record.setting) == ("lstm-small", 2, "dgc", "100x")
    assert (record.phase, record.seed, record.parameters) == ("final", 1, {"learning_rate": 1.0, "momentum": 0.5})
    assert [look.step for look in record.looks] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert record.looks[0].epoch == pytest.approx(record.looks[2].epoch / 3)
    assert record.compression.endswith(",momentum=0.5")
    accuracies = [results[number][0][0].validation_score for number in (8, 9, 10)]
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)


def stopped_early() -> tuple[Record, Record]:
    """On this rank: a trial whose scores are such, and one that ends where that was best."""
    from hvd_compress.study.torch_language import LanguageTask

    measured, scores = LanguageTask.score, iter((50.0, 40.0, 45.0, 41.0, 30.0))

    def score(task: LanguageTask, part: str) -> float:
        return next(scores) if part == "validation" else measured(task, part)

    plan = Plan(
        (), {}, batch_size=4, looks=5, search_looks=5, trials=1, seeds=1, look_steps=2, sequence_length=12, patience=2
    )
    with mock.patch.object(LanguageTask, "score", score):
        stopped, _ = trained("lstm-small", "topk", "0.01", plan)
    shorter = Plan((), {}, batch_size=4, looks=2, search_looks=2, trials=1, seeds=1, look_steps=2, sequence_length=12)
    return stopped, trained("lstm-small", "topk", "0.01", shorter)[0]


def test_a_streak_ends_a_trial_and_the_parameters_of_the_best_look_are_tested() -> None:
    for stopped, shorter in run(stopped_early, seconds=LIMIT_SECONDS):
        assert [look.score for look in stopped.looks] == [50.0, 40.0, 45.0, 41.0]
        assert (stopped.best_step, stopped.validation_score) == (4, 40.0)
        assert stopped.test_score == shorter.test_score


def unequal() -> Record:
    """On this rank: a trial in which one rank's parameters are changed behind Horovod's back."""
    import horovod.torch as hvd

    from hvd_compress.study.torch_task import Task

    honest = Task.crc32
    with mock.patch.object(Task, "crc32", lambda task: honest(task) + hvd.rank()):
        return trained("lstm-small", "none", "")[0]


def test_ranks_that_are_not_equal_are_reported() -> None:
    assert [record.ranks_equal for record in run(unequal, seconds=LIMIT_SECONDS)] == [False, False]
