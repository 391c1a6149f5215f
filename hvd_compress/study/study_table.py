"""The results of a study as rows and as a table; the report has the pictures."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from hvd_compress.study.cells import FINAL
from hvd_compress.study.records import Record

__all__ = ["rows_of", "table_of"]


def rows_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row of JSON values for each cell, whose records stand side by side."""
    cells = itertools.groupby(records, key=lambda r: (r.task, r.model, r.data, r.workers, r.method, r.setting))
    return [_row(list(of)) for _, of in cells]


def _row(records: list[Record]) -> dict[str, Any]:
    finals = [record for record in records if record.phase == FINAL]
    shown = finals or records
    scores = [record.test_score for record in shown if not math.isnan(record.test_score)]
    first = shown[0]
    return {
        "model": first.model,
        "data": first.data,
        "workers": first.workers,
        "method": first.method,
        "setting": first.setting,
        "trials": len(records) - len(finals),
        "seeds": len(finals),
        "diverged": sum(math.isnan(record.test_score) for record in records),
        "parameters": first.parameters if finals else {},
        "test_score": statistics.fmean(scores) if finals and scores else None,
        "test_deviation": statistics.stdev(scores) if finals and len(scores) > 1 else None,
        "sent_bytes": first.traffic.sent_bytes,
        "compression_ratio": first.traffic.compression_ratio,
        "compressed_ratio": first.traffic.compressed_ratio,
        "step_milliseconds": statistics.median(record.milliseconds.step for record in shown),
        "ranks_equal": all(record.ranks_equal for record in records),
    }


def table_of(rows: Sequence[dict[str, Any]], score: str) -> Table:
    """The rows as a table: W workers, and the compression ratio of those gradients that are compressed.

    Parameters
    ----------
    rows : sequence of dict
        From `rows_of`.
    score : str
        What the test score is: "perplexity" or "accuracy".
    """
    table = Table("model", "W", "method", "setting", "best hyper-parameters")
    for name in (f"test {score}", "ratio", "step ms"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *(str(row[name]) for name in ("model", "workers", "method", "setting")),
            ", ".join(
                f"{name.replace('learning_rate', 'lr')} {value:.3g}" for name, value in row["parameters"].items()
            ),
            _score(row),
            f"{row['compressed_ratio']:.1f}",
            f"{row['step_milliseconds']:.1f}",
        )
    return table


def _score(row: dict[str, Any]) -> str:
    if row["test_score"] is None:
        return "diverged" if row["diverged"] == row["trials"] else ""
    deviation = "" if row["test_deviation"] is None else f" ± {row['test_deviation']:.2g}"
    return f"{row['test_score']:.4g}{deviation}"
