"""What a report estimates, recommends and holds against the papers comes from the records."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from hvd_compress.bench.link import link_at
from hvd_compress.study.records import Record
from hvd_compress.study.report import advice, paces
from hvd_compress.study.report.claims import Claim
from hvd_compress.study.report.contents import claims, sections
from hvd_compress.study.report.outcomes import Study, study_of
from hvd_compress.study.report.speed import projections, wire_seconds
from tests.study_records import LM, RECORDS, STUDY, changed, outcome, scaled, slowed


def test_dense_and_compressed_take_equally_long_at_the_break_even() -> None:
    for projection in projections(STUDY, LM):
        for of in projection.outcomes[1:]:
            speed = projection.break_even(of)
            if speed:
                pace = projection.paces(speed)[projection.outcomes.index(of)]
                assert pace.gain == pytest.approx(1.0, abs=1e-9)
                assert projection.paces(speed / 2)[projection.outcomes.index(of)].gain > 1


def test_what_sends_more_than_dense_never_pays() -> None:
    slow = next(p for p in projections(STUDY, LM) if p.workers == 16)
    assert slow.break_even(outcome(STUDY, "qsgd", "7bit")) == 0.0


def test_transfers_are_those_of_rings_of_workers() -> None:
    link = link_at(1e9 / 8, 2)
    dense = 1e-4 * 2 + 4 * 1_161_600 * 8 / 1e9
    assert wire_seconds(outcome(STUDY, "none"), link) == pytest.approx(dense)
    of = outcome(STUDY, "topk", "0.01")
    alone = 2e-4 + (of.sent_bytes - of.gathered_bytes) * 8 / 1e9 + 1e-4 + of.gathered_bytes * 8 / 1e9
    assert wire_seconds(of, link) == pytest.approx(alone)


def test_more_workers_than_measured_are_marked_and_decode_more_payloads() -> None:
    by_workers = {projection.workers: projection for projection in projections(STUDY, LM)}
    assert {workers: p.measured for workers, p in by_workers.items()} == {2: True, 8: False, 16: False}
    assert by_workers[8].label == "8 workers (extrapolated)"
    index = by_workers[2].outcomes.index(outcome(STUDY, "topk", "0.01"))
    decode = {workers: p.paces(1e9)[index].own.cost.decode for workers, p in by_workers.items()}
    assert decode[8] == pytest.approx(4 * decode[2])


def recommended(study: Study, speed: float) -> advice.Recommendation:
    rows = advice.recommendations(study, LM)
    return next(row for row in rows if row.projection.workers == 2 and row.bits_per_second == speed)


def test_compression_is_recommended_where_it_pays_and_not_elsewhere() -> None:
    slow, fast = recommended(STUDY, 1e8), recommended(STUDY, 2.5e10)
    assert (slow.verdict, fast.verdict) == ("compress", "do not compress: too little gain")
    others = [p for p in slow.projection.paces(1e8) if advice.acceptable(p.outcome, slow.projection.dense)]
    assert slow.pace.gain == max(pace.gain for pace in others)
    row = advice.table(STUDY).rows[0]
    assert row[3:6] == ("compress", slow.pace.outcome.label, slow.pace.outcome.compression)


def test_what_makes_the_model_worse_is_not_recommended() -> None:
    first = recommended(STUDY, 1e8).pace.outcome
    worse = changed(scaled(1.05, "test_score"), first.method)
    assert recommended(worse, 1e8).pace.outcome.method != first.method
    once = iter([math.nan, 1.0])
    unstable = changed(lambda record: {"test_score": record.test_score * next(once)}, first.method, first.setting)
    assert recommended(unstable, 1e8).pace.outcome.label != first.label


def test_a_method_without_an_acceptable_setting_is_drawn_and_marked() -> None:
    def labels(study: Study) -> list[str]:
        figure = paces.speed_up(study, LM)
        assert figure is not None
        return [line.label for line in figure.panels[0].lines if line.method == "dgc"]  # type: ignore[union-attr]

    assert labels(STUDY) == ["DGC 0.01"]
    assert labels(changed(scaled(2.0, "test_score"), "dgc")) == ["DGC 0.01 *"]


def claim(study: Study, words: str) -> Claim:
    return next(claim for claim in claims(study) if words in claim.statement)


CLAIMS: list[tuple[str, str, str, Callable[[Record], dict[str, Any]], str]] = [
    ("clearly worst", "randomk", "", scaled(0.5, "test_score"), "final"),
    ("without residual than with", "randomk-no-residual", "", scaled(0.3, "test_score"), "final"),
    ("not more than 3 %", "topk", "0.01", scaled(1.06, "test_score"), "final"),
    ("not more than 3 %", "dgc", "0.01", scaled(1.06, "test_score"), "final"),
    ("QSGD with 3 bit", "qsgd", "3bit", scaled(1.06, "test_score"), "final"),
    ("density 0.0001 is clearly worse", "topk", "0.0001", scaled(0.7, "test_score"), "final"),
    ("dense training has learned", "none", "", scaled(1.4, "test_score"), "final"),
    ("JointSQ's encoding", "jointsq", "", slowed(encode=50.0), "final"),
    ("at equal bytes JointSQ", "jointsq", "100x", scaled(1.2, "test_score"), "final"),
]


@pytest.mark.parametrize(("words", "method", "setting", "change", "phase"), CLAIMS)
def test_a_claim_holds_or_not_by_the_records(
    words: str, method: str, setting: str, change: Callable[[Record], dict[str, Any]], phase: str
) -> None:
    before, after = claim(STUDY, words), claim(changed(change, method, setting, phase), words)
    assert sum(case.holds for case in after.cases) < sum(case.holds for case in before.cases)
    assert after.verdict.startswith(("holds in", "does not hold"))
    assert after.narrowest is not None
    assert after.narrowest.off_by


@pytest.mark.parametrize("rate", [0.1, 1000.0])
def test_the_best_learning_rates_of_sparsifiers_are_held_against_those_of_dense(rate: float) -> None:
    study = changed(lambda record: {"parameters": {"learning_rate": rate}}, "topk", phase="search")
    cases = [case for case in claim(study, "learning rates").cases if "2 workers, top-k" in case.where]
    assert [case.holds for case in cases] == [rate < 1]


def test_what_was_not_trained_is_not_measured() -> None:
    study = study_of(record for record in RECORDS if record.method in ("none", "qsgd"))
    assert claim(study, "not more than 3 %").verdict == "not measured"
    assert claim(study, "QSGD with 3 bit").verdict == "holds"
    assert claim(study, "near-lossless").verdict == "not measured"


def test_a_study_of_dense_training_alone_has_every_section() -> None:
    study = study_of(record for record in RECORDS if record.method == "none" and record.task == "lm")
    assert [section.heading for section in sections(study)] == [section.heading for section in sections(STUDY)]
    assert recommended(study, 1e8).verdict == "do not compress: no method with as good a score"
