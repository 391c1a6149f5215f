"""The tables of results in the README are those of the databases beside the report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hvd_compress.study.database import load_records
from hvd_compress.study.study_table import rows_of

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("### What they have found")[2].partition("\n## ")[0]
EQUAL = ("top-k", "DGC", "top-k + QSGD", "JointSQ")
NAMES = {"dense": "none", "top-k": "topk", "DGC": "dgc", "QSGD": "qsgd", "random-k": "randomk", "JointSQ": "jointsq"}
NAMES |= {"random-k without residual": "randomk-no-residual", "top-k + QSGD": "topk_qsgd"}
NAMES |= {"JointSQ, codes counted": "jointsq-values"}
MODELS = {"LSTM": "lstm-small", "VGG": "vgg-small", "ViT": "vit-small"}


def table(first: str) -> list[list[str]]:
    """Rows of the table whose header begins so, the header first."""
    found = re.search(rf"^\| {re.escape(first)} \|.*?(?=\n\n)", SECTION, re.DOTALL | re.MULTILINE)
    assert found, f"no table with {first}"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()]
    return [rows[0], *rows[2:]]


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str, str], dict[str, Any]]:
    """What the studies ended with on two workers, by model, method and setting."""
    records = [
        record
        for task in ("lm", "vision")
        for record in load_records(f"sqlite:///{ROOT / 'scripts' / 'results' / task / 'study.db'}")
    ]
    rows = rows_of(records)
    assert all(row["ranks_equal"] and row["seeds"] == 3 for row in rows)
    return {(row["model"], row["method"], row["setting"]): row for row in rows if row["workers"] == 2}


def score(row: dict[str, Any]) -> str:
    if row["model"].startswith("lstm"):
        return f"{row['test_score']:.1f} ± {row['test_deviation']:.1f}"
    return f"{100 * row['test_score']:.1f} ± {100 * row['test_deviation']:.1f}"


def test_the_language_models(results: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    rows = table("method, LSTM")[1:]
    assert len(rows) == 11
    for method, setting, ratio, perplexity in rows:
        row = results["lstm-small", NAMES[method], setting]
        assert (ratio, perplexity) == (f"{row['compressed_ratio']:,.1f}", score(row))


def test_equal_bytes(results: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    header, *rows = table("method, equal bytes")
    assert [row[0] for row in rows[:4]] == list(EQUAL)
    for name, *cells in rows:
        for column, cell in zip(header[1:], cells, strict=True):
            model, _, setting = column.partition(" ")
            asked = {"dense": "", "QSGD": "smallest", "JointSQ, codes counted": "1000x"}.get(name, setting)
            alone = name not in EQUAL
            assert cell == ("" if alone and setting != "1000x" else score(results[MODELS[model], NAMES[name], asked]))
