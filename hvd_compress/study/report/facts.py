"""A report for scripts: JSON values, None for what is not a number."""

from __future__ import annotations

import math
from typing import Any

from hvd_compress.study.report import advice, equal_bytes
from hvd_compress.study.report.contents import claims
from hvd_compress.study.report.outcomes import Job, Outcome, Study

__all__ = ["facts"]


def facts(study: Study) -> dict[str, Any]:
    """The results, recommendations, comparisons at equal bytes and claims of a study."""
    return {
        "results": [_result(study, outcome) for outcome in study.outcomes],
        "recommendations": [_recommendation(row) for s in study.subjects() for row in advice.recommendations(study, s)],
        "equal_bytes": [_comparison(comparison) for comparison in equal_bytes.comparisons(study)],
        "claims": [
            {
                "source": claim.source,
                "statement": claim.statement,
                "verdict": claim.verdict,
                "cases": [
                    {"where": case.where, "value": _number(case.value), "limit": case.limit, "holds": case.holds}
                    for case in claim.cases
                ],
            }
            for claim in claims(study)
        ],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _job(job: Job) -> dict[str, Any]:
    return {**job.subject._asdict(), "workers": job.workers}


def _method(outcome: Outcome) -> dict[str, Any]:
    return {"method": outcome.method, "setting": outcome.setting, "compression": outcome.compression}


def _result(study: Study, outcome: Outcome) -> dict[str, Any]:
    dense, spread, time = study.dense(outcome.job), outcome.spread, outcome.milliseconds
    change = outcome.job.subject.score.change(spread.mean, dense.spread.mean) if dense else math.nan
    return {
        **_job(outcome.job),
        **_method(outcome),
        "final_runs": len(outcome.finals),
        "test_scores": list(spread.values),
        "diverged": spread.diverged,
        "mean": _number(spread.mean),
        "sd": _number(spread.sd),
        "change_from_dense": _number(change),
        "sent_bytes": outcome.sent_bytes,
        "compression_ratio": outcome.ratio,
        "compressed_ratio": outcome.compressed_ratio,
        "step_ms": time.step,
        "compute_ms": outcome.compute,
        "encode_ms": time.encode,
        "wait_ms": time.wait,
        "decode_ms": time.decode,
    }


def _recommendation(row: advice.Recommendation) -> dict[str, Any]:
    return {
        **_job(row.projection.job),
        "workers": row.projection.workers,
        "extrapolated": not row.projection.measured,
        "bits_per_second": row.bits_per_second,
        "verdict": row.verdict,
        **(_method(row.pace.outcome) if row.compresses else {}),
        "gain": row.pace.gain,
        "gain_overlapped": row.pace.gain_overlapped,
    }


def _comparison(comparison: equal_bytes.Comparison) -> dict[str, Any]:
    rows = [
        {
            **_method(outcome),
            "same_bytes": outcome is not comparison.smallest,
            "compressed_bytes": outcome.compressed_bytes,
            "mean": _number(outcome.spread.mean),
            "sd": _number(outcome.spread.sd),
        }
        for outcome in comparison.rows
    ]
    return {**_job(comparison.job), "compressed_ratio": comparison.jointsq.compressed_ratio, "rows": rows}
