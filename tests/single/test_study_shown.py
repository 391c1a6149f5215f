"""What a person sees of a study: progress while it goes on, and rows of results."""

from __future__ import annotations

import io
import itertools
import math
import random
import time

import pytest
from rich.console import Console

from hvd_compress.study.records import Record
from hvd_compress.study.study_progress import reporting
from hvd_compress.study.study_table import rows_of, table_of
from tests.study_records import record


def begin(number: int, phase: str = "search") -> dict[str, object]:
    return {"event": "begin", "cell": "smoke/lm/a", "place": [phase, number], "parameters": {"learning_rate": 20.0}}


def test_a_pipe_gets_a_line_for_each_trial_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=5.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with reporting({"search": 1, "final": 3}, total=10, done=2) as reporter:
        for number, phase in ((0, "search"), (0, "final")):
            reporter.take(begin(number, phase))
            reporter.take({"event": "step", "done": 1, "most": 2, "note": "loss 3"})
            reporter.take({"event": "end", "score": 123.456, "seconds": 9.6})
    first, second = capsys.readouterr().err.splitlines()
    # Ten seconds for one look, and seven are left; then twenty for four, and four are left.
    assert first == "smoke/lm/a search 1: learning_rate 20: validation 123.5 in 10 s; about 0:01:10 left"
    assert second == "smoke/lm/a final 1: learning_rate 20: validation 123.5 in 10 s; about 0:00:20 left"


def cell(scores: list[float], method: str = "topk") -> list[Record]:
    draw = random.Random(0)
    finals = [
        record(draw, method=method, phase="final", seed=seed, test_score=score, parameters={"learning_rate": 7.0})
        for seed, score in enumerate(scores)
    ]
    return [record(draw, method=method, phase="search", seed=0) for _ in range(4)] + finals


def test_a_row_has_mean_and_spread_of_the_final_trials_alone() -> None:
    first, second = rows_of([*cell([100.0, 104.0, 102.0]), *cell([], "dgc")])
    assert (first["method"], first["trials"], first["seeds"]) == ("topk", 4, 3)
    assert (first["test_score"], first["test_deviation"]) == (102.0, 2.0)
    assert first["parameters"] == {"learning_rate": 7.0}
    assert (second["trials"], second["seeds"], second["test_score"]) == (4, 0, None)


def test_a_diverged_seed_is_counted_and_not_averaged() -> None:
    (row,) = rows_of(cell([100.0, math.nan, 102.0]))
    assert (row["test_score"], row["diverged"]) == (101.0, 1)


def test_table_shows_the_rows() -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table_of(rows_of(cell([100.0, 104.0, 102.0])), "perplexity"))
    lines = [line for line in console.export_text().splitlines() if line.startswith("│")]
    cells = [cell.strip() for cell in lines[0].split("│")[1:-1]]
    assert cells[:6] == ["lstm-small", "2", "topk", "0.01", "lr 7", "102 ± 2"]
