"""``tests/field_cases.toml`` says for each report from the field which tests stand for it, or why none does."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CASES: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "field_cases.toml").read_text(encoding="utf-8"))


def named_by_case() -> dict[str, set[str]]:
    """Return for each id the tests whose docstrings name it."""
    found = defaultdict(set)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for case in re.findall(r"\bF\d{3}\b", ast.get_docstring(node) or ""):
                    found[case].add(f"{file.relative_to(ROOT).as_posix()}::{node.name}")
    return found


NAMED = named_by_case()


@pytest.mark.parametrize("case", sorted(CASES.keys() | NAMED.keys()))
def test_case_has_the_tests_that_name_it_or_a_reason(case: str) -> None:
    assert re.fullmatch(r"F\d{3}", case)
    assert case in CASES, f"tests/field_cases.toml lacks {case}, which {sorted(NAMED[case])} name"
    entry = CASES[case]
    assert entry.keys() <= {"title", "tests", "reason", "lacks"}
    assert entry["title"]
    assert ("tests" in entry) != ("reason" in entry), "an entry has either tests or a reason"
    assert entry.get("reason", "-")
    assert entry.get("lacks", "-")
    assert "lacks" not in entry or "tests" in entry
    # In both directions: a test that is renamed or dropped, and one that is not listed.
    assert sorted(entry.get("tests", [])) == sorted(NAMED[case])


def test_ids_are_in_order() -> None:
    assert list(CASES) == sorted(CASES)
    assert len(CASES) > 70
