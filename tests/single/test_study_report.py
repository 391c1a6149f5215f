"""What a report shows comes from the records: scores, figures, comparisons, speeds, recommendations and claims."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from hvd_compress.registry import codec_class, codec_names
from hvd_compress.study.methods import METHODS
from hvd_compress.study.records import Record
from hvd_compress.study.report import advice, equal_bytes, paces, tables, training
from hvd_compress.study.report.charts import Figure, LinePanel
from hvd_compress.study.report.facts import facts
from hvd_compress.study.report.methods import UNCORRECTED, label_of
from hvd_compress.study.report.outcomes import Job, Study, study_of
from hvd_compress.study.report.panels import look_of
from hvd_compress.study.report.scores import SCORES, spread_of
from hvd_compress.study.report.speed import projections
from hvd_compress.study.report.times import step_times
from hvd_compress.study.results import Traffic
from tests.study_records import LM, RECORDS, STUDY, changed, outcome, scaled, slowed

FIGURES: dict[str, tuple[Callable[[Study], Figure | None], Callable[[Record], dict[str, Any]], str]] = {
    "score by ratio": (lambda s: training.score_by_ratio(s, LM), scaled(1.1, "test_score"), "final"),
    "score by bytes": (lambda s: training.score_by_bytes(s, LM), scaled(1.1, "test_score"), "final"),
    "sent bytes": (
        lambda s: training.score_by_ratio(s, LM),
        lambda r: {"traffic": dataclasses.replace(r.traffic, sent_bytes=r.traffic.sent_bytes + 10)},
        "final",
    ),
    "curves": (
        lambda s: training.curves(s, LM, 2),
        lambda r: {"looks": (dataclasses.replace(r.looks[0], score=1.0), *r.looks[1:])},
        "final",
    ),
    "curves by bytes": (
        lambda s: training.curves(s, LM, 2, by_bytes=True),
        lambda r: {"looks": (dataclasses.replace(r.looks[0], sent_bytes=1), *r.looks[1:])},
        "final",
    ),
    "epochs": (lambda s: training.epochs(s, LM), lambda r: {"best_step": r.looks[2].step}, "final"),
    "hyper-parameters": (
        lambda s: training.hyper_parameters(s, LM),
        lambda r: {"parameters": {**r.parameters, "learning_rate": 1.0}},
        "search",
    ),
    "step times": (lambda s: step_times(s, LM), slowed(wait=9.0), "final"),
    "step times at 1 Gbit/s": (lambda s: step_times(s, LM, 1e9), slowed(encode=9.0), "final"),
    "speed-up": (lambda s: paces.speed_up(s, LM), slowed(decode=9.0), "final"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_changes_with_the_records_and_with_nothing_else(name: str) -> None:
    figure, change, phase = FIGURES[name]
    assert figure(changed(change, "topk", "0.01", phase)) != figure(STUDY)
    assert figure(study_of(reversed(RECORDS))) == figure(STUDY)
    assert figure(changed(change, "topk", "0.01", phase, task="vision")) == figure(STUDY)


def test_points_are_means_over_the_seeds_at_the_ratio_that_was_sent() -> None:
    figure = training.score_by_ratio(STUDY, LM)
    panel = figure.panels[1]
    assert isinstance(panel, LinePanel)
    line = next(line for line in panel.lines if line.method == "qsgd")
    finals = [r for r in RECORDS if (r.task, r.workers, r.method, r.phase) == ("lm", 2, "qsgd", "final")]
    for setting, x, y, low, high in zip(
        ("7bit", "5bit", "3bit", "smallest"), line.x, line.y, line.low, line.high, strict=True
    ):
        scores = [r.test_score for r in finals if r.setting == setting]
        sent = next(r.traffic.sent_bytes for r in finals if r.setting == setting)
        assert (y, low, high) == (pytest.approx(sum(scores) / 2), min(scores), max(scores))
        assert x == pytest.approx(4 * 1_161_600 / sent)
    dense = outcome(STUDY, "none").spread
    assert panel.level is not None
    assert (panel.level.value, panel.level.low, panel.level.high) == (dense.mean, dense.low, dense.high)


def test_stacked_times_are_the_parts_of_a_step() -> None:
    figure = step_times(STUDY, LM)
    assert figure is not None
    for panel, job in zip(figure.panels, STUDY.jobs(LM), strict=True):
        for row, of in zip(panel.rows, STUDY.at(job), strict=True):  # type: ignore[union-attr]
            assert sum(row.parts) == pytest.approx(of.milliseconds.step, rel=0.05)
            assert row.parts[1:] == (of.milliseconds.encode, of.milliseconds.decode, of.milliseconds.wait)


def test_a_diverged_seed_is_counted_and_left_out_of_the_mean() -> None:
    spread = spread_of([100.0, math.nan, 110.0, math.inf])
    assert (spread.mean, spread.low, spread.high, spread.diverged) == (105.0, 100.0, 110.0, 2)
    assert SCORES["lm"].spread_text(spread) == "105.0 ± 7.1 (2 of 4 diverged)"
    assert SCORES["lm"].spread_text(spread_of([math.nan])) == "diverged"


def test_what_diverged_has_no_point_no_recommendation_and_no_number_in_json() -> None:
    assert math.isnan(outcome(STUDY, "dgc", "0.0001").spread.mean)
    text = json.dumps(facts(STUDY), allow_nan=False)
    result = next(r for r in json.loads(text)["results"] if (r["method"], r["setting"]) == ("dgc", "0.0001"))
    assert (result["mean"], result["diverged"]) == (None, 2)
    dead = changed(scaled(math.nan, "test_score"), "none")
    assert dead.dense(Job(LM, 2)) is None
    assert [p.workers for p in projections(dead, LM)] == [8, 16]
    json.dumps(facts(dead), allow_nan=False)


def test_dense_training_on_one_worker_sends_nothing_and_has_ratio_1() -> None:
    dense = STUDY.dense(Job(LM, 1))
    assert dense is not None
    assert (dense.ratio, dense.sent_bytes) == (1.0, 4 * 1_161_600)


def test_while_there_are_no_final_runs_the_best_of_the_search_stands_for_a_cell() -> None:
    searched = [r for r in RECORDS if r.phase == "search"]
    runs = outcome(study_of(searched), "topk", "0.01").runs
    of_cell = [r for r in searched if (r.task, r.workers, r.method, r.setting) == ("lm", 2, "topk", "0.01")]
    assert runs == (min(of_cell, key=lambda r: r.validation_score),)
    assert "search only" in str(tables.results(study_of(searched), LM).rows)


def test_every_method_has_a_name_and_a_look_of_its_own() -> None:
    methods = {"none", *METHODS, *(name for name in codec_names() if not codec_class(name).wrapper)}
    assert len({label_of(method) for method in methods} - methods) == len(methods)
    assert len({look_of(method, "black") for method in methods}) == len(methods)


CONFIGS = {
    ("powersgd", "rank=2"): ("powersgd:rank=2", 100.0),
    ("powersgd", "rank=1"): ("powersgd:rank=1", 200.0),
    ("onebit", ""): ("onebit", 30.0),
    ("topk", ""): ("topk", 72.0),
    ("randomk", ""): ("randomk", 100.0),
}
"""Compression and ratio of methods that are configs of codecs."""


@pytest.fixture(scope="module")
def with_configs() -> Study:
    """The study with more methods, which do as top-k does, from half the bytes to twice as many."""
    dense = 4 * 1_161_600
    more = [
        dataclasses.replace(
            record,
            method=method,
            setting=setting,
            compression=compression,
            traffic=Traffic(dense, round(dense / ratio), dense, round(dense / ratio), 0),
        )
        for (method, setting), (compression, ratio) in CONFIGS.items()
        for record in RECORDS
        if (record.task, record.workers, record.method, record.setting) == ("lm", 2, "topk", "0.01")
    ]
    return study_of([*RECORDS, *more])


def test_configs_stand_beside_the_methods_of_presets(with_configs: Study) -> None:
    labels = [row[1] for row in tables.results(with_configs, LM).rows]
    assert {"PowerSGD rank=2", "PowerSGD rank=1", "OneBit", "top-k", "random-k"} <= set(labels)
    panel = training.score_by_ratio(with_configs, LM).panels[1]
    assert isinstance(panel, LinePanel)
    assert next(line.x for line in panel.lines if line.method == "powersgd") == pytest.approx((100, 200), rel=0.01)
    speeds = next(p for p in projections(with_configs, LM) if p.workers == 2)
    assert {"powersgd", "onebit"} <= {pace.outcome.method for pace in speeds.paces(1e8)}
    at_100 = next(c for c in equal_bytes.comparisons(with_configs) if (c.job, c.label) == (Job(LM, 2), "100x"))
    assert [(o.method, o.setting) for o in at_100.others if o.method == "powersgd"] == [("powersgd", "rank=2")]
    results = json.loads(json.dumps(facts(with_configs), allow_nan=False))["results"]
    assert sum((result["method"], result["setting"]) in CONFIGS for result in results) == len(CONFIGS)


def test_the_fastest_acceptable_config_is_recommended(with_configs: Study) -> None:
    slow_link = advice.recommendations(with_configs, LM)[0]
    assert slow_link.pace.outcome.label == "PowerSGD rank=1"


def test_methods_are_compared_at_equal_bytes_only() -> None:
    at_100 = next(c for c in equal_bytes.comparisons(STUDY) if (c.job, c.label) == (Job(LM, 2), "100x"))
    at_ratio = [("topk", "100x"), ("dgc", "100x"), ("topk_qsgd", "100x")]
    assert [(o.method, o.setting) for o in at_100.others] == [*at_ratio, ("randomk", "0.01"), (UNCORRECTED, "0.01")]
    assert at_100.smallest is not None
    assert at_100.name(at_100.smallest) == "QSGD (only 15.5x)"

    def more_bytes(record: Record) -> dict[str, Any]:
        sent = round(1.2 * record.traffic.compressed_sent_bytes)
        return {"traffic": dataclasses.replace(record.traffic, compressed_sent_bytes=sent)}

    beside = equal_bytes.comparisons(changed(more_bytes, "dgc", "100x"))
    at_100 = next(c for c in beside if (c.job, c.label) == (Job(LM, 2), "100x"))
    assert [o.method for o in at_100.others] == ["topk", "topk_qsgd", "randomk", UNCORRECTED]


def test_figure_of_equal_bytes_shows_the_seeds() -> None:
    figure = next(f for f in equal_bytes.figures(STUDY) if "lstm-small, 2" in f.title)
    jointsq = figure.panels[0].rows[0]  # type: ignore[union-attr]
    assert jointsq.values == outcome(STUDY, "jointsq", "31x").spread.values  # type: ignore[union-attr]
    assert equal_bytes.figures(changed(scaled(1.1, "test_score"), "jointsq")) != equal_bytes.figures(STUDY)


def test_a_comparison_says_where_dense_has_not_learned() -> None:
    assert "to count" not in str(equal_bytes.table(STUDY).rows)
    worse = changed(lambda record: {"test_score": 230.0}, "none")
    assert "230.0 ± 0.0 (needs 224.5 to count)" in str(equal_bytes.table(worse).rows)


def test_the_papers_counting_stands_beside_what_was_sent() -> None:
    counted = equal_bytes.counted(STUDY)
    row = next(row for row in counted.rows if row[:2] == ("lstm-small", "JointSQ, codes counted 1000x"))
    assert row[2:5] == ("1,000x", "200.0x", "120.2x")
