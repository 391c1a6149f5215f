"""Records of a study that was never run, but could have been: what the tests of reports are made from."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hvd_compress.study.records import Look, Record
from hvd_compress.study.report.outcomes import Job, Outcome, Study, Subject, study_of
from hvd_compress.study.results import StepTime, Traffic

MODEL_SIZES = {
    "lstm-small": 1_161_600,
    "transformer": 1_500_000,
    "resnet20": 270_000,
    "vit-small": 600_000,
}
METHODS: dict[tuple[str, str], tuple[str, float, float]] = {
    # Config string, compression ratio of what is compressed, what it does to the perplexity.
    ("none", ""): ("none", 1.0, 1.0),
    ("topk", "0.01"): ("topk:density=0.01", 72.0, 0.99),
    ("topk", "0.001"): ("topk:density=0.001", 700.0, 1.03),
    ("topk", "0.0001"): ("topk:density=0.0001", 6500.0, 1.35),
    ("dgc", "0.01"): ("dgc:density=0.01,momentum=0.4", 72.0, 0.98),
    ("dgc", "0.001"): ("dgc:density=0.001,momentum=0.4", 700.0, 1.02),
    ("dgc", "0.0001"): ("dgc:density=0.0001,momentum=0.4", 6500.0, 1.45),
    ("qsgd", "7bit"): ("qsgd:levels=64,packing=radix", 3.95, 1.0),
    ("qsgd", "5bit"): ("qsgd:levels=16,packing=radix", 5.3, 1.01),
    ("qsgd", "3bit"): ("qsgd:levels=4,packing=radix", 7.9, 1.02),
    ("qsgd", "smallest"): ("qsgd:bits=2", 15.5, 1.05),
    ("randomk", "0.01"): ("randomk:density=0.01", 100.0, 1.8),
    ("randomk-no-residual", "0.01"): ("randomk:density=0.01,mode=unbiased,error_feedback=false", 100.0, 3.5),
    ("jointsq", "31x"): ("jointsq:bits_per_entry=1.03", 31.0, 1.0),
    ("jointsq", "100x"): ("jointsq:bits_per_entry=0.32", 100.0, 1.01),
    ("jointsq", "1000x"): ("jointsq:bits_per_entry=0.032", 1000.0, 1.04),
    ("jointsq-values", "1000x"): ("jointsq:bits_per_entry=0.032,accounting=values", 200.0, 1.02),
    ("topk", "100x"): ("topk:density=0.0072", 100.0, 1.02),
    ("topk", "1000x"): ("topk:density=0.00072", 1000.0, 1.07),
    ("dgc", "100x"): ("dgc:density=0.0072,momentum=0.4", 100.0, 1.02),
    ("topk_qsgd", "31x"): ("topk_qsgd:density=0.06,bits=4", 31.0, 1.005),
    ("topk_qsgd", "100x"): ("topk_qsgd:density=0.016,bits=4", 100.0, 1.02),
    ("topk_qsgd", "1000x"): ("topk_qsgd:density=0.0014,bits=4", 1000.0, 1.06),
}
ENCODE = {"none": 0.0, "topk": 3.0, "dgc": 4.0, "qsgd": 5.0, "randomk": 1.5, "jointsq": 4.5, "topk_qsgd": 4.0}
"""Milliseconds for a million values."""


JOBS = [
    ("lm", "lstm-small", "kjv", 1),
    ("lm", "lstm-small", "kjv", 2),
    ("lm", "lstm-small", "kjv", 4),
    ("lm", "transformer", "kjv", 2),
    ("vision", "resnet20", "digits", 2),
    ("vision", "vit-small", "digits", 2),
]


def made_up_study(jobs: Sequence[tuple[str, str, str, int]] = JOBS, seeds: int = 3, trials: int = 8) -> list[Record]:
    """All methods; one of the settings diverges with every seed on language models."""
    draw = random.Random(0)
    return [made for job in jobs for made in _cells(draw, *job, seeds, trials)]


def _cells(
    draw: random.Random, task: str, model: str, data: str, workers: int, seeds: int, trials: int
) -> Iterator[Record]:
    for method, setting in METHODS:
        for number in range(trials + seeds):
            phase = "search" if number < trials else "final"
            yield record(draw, task, model, data, workers, method, setting, phase=phase, seed=number)


def record(
    draw: random.Random,
    task: str = "lm",
    model: str = "lstm-small",
    data: str = "kjv",
    workers: int = 2,
    method: str = "topk",
    setting: str = "0.01",
    **changes: Any,
) -> Record:
    """One plausible record; `changes` replace fields of it."""
    compression, ratio, factor = METHODS[method, setting]
    codec, size = compression.partition(":")[0], MODEL_SIZES[model]
    sparse = codec in ("topk", "dgc", "randomk", "topk_qsgd", "jointsq")
    rate = 10 ** draw.uniform(0.5, 1.5) * (0.6 if sparse else 1.0)
    diverges = (method, setting, changes.get("phase")) == ("dgc", "0.0001", "final") and task == "lm"
    score = math.nan if diverges else _score(draw, task, factor, rate)
    traffic = _traffic(codec, size, ratio, workers)
    made = Record(
        task=task,
        model=model,
        data=data,
        workers=workers,
        method=method,
        setting=setting,
        compression=compression,
        phase="final",
        seed=0,
        parameters={"learning_rate": rate, "dropout": draw.uniform(0, 0.6)}
        | ({"momentum": draw.uniform(0.1, 0.9)} if codec == "dgc" else {}),
        model_size=size,
        looks=_looks(draw, task, score, traffic.sent_bytes, 100 if factor < 1.2 else 60),
        best_step=900 if factor < 1.2 else 500,
        validation_score=score,
        test_score=score * draw.uniform(0.99, 1.0),
        traffic=traffic,
        milliseconds=_times(draw, codec, size, workers),
        seconds=draw.uniform(40, 90),
        ranks_equal=True,
    )
    return dataclasses.replace(made, **changes)


def _score(draw: random.Random, task: str, factor: float, rate: float) -> float:
    missed = 0.02 * abs(math.log10(rate) - 1.0) + draw.uniform(0, 0.01)
    return 180 * factor * (1 + missed) if task == "lm" else min(0.999, 0.985 - 0.08 * (factor - 1) - missed / 2)


def _looks(draw: random.Random, task: str, score: float, sent_bytes: int, steps: int) -> tuple[Look, ...]:
    def at(number: int) -> float:
        if math.isnan(score):
            return math.nan if number > 3 else 900.0
        left = math.exp(-number / 2.5) * draw.uniform(0.95, 1.05)
        return score * (1 + 3 * left) if task == "lm" else score - 0.8 * left

    return tuple(
        Look(number * steps, number * steps / 120, number * steps * sent_bytes, 5.0 - 0.1 * number, at(number))
        for number in range(1, 11)
    )


def _traffic(codec: str, size: int, ratio: float, workers: int) -> Traffic:
    dense = 4 * size
    if codec == "none":
        return Traffic(dense, dense, 0, 0, 0) if workers > 1 else Traffic(0, 0, 0, 0, 0)
    small = dense // 300
    compressed = dense - small
    sent = round(compressed / ratio)
    gathered = 0 if codec == "randomk" else sent
    return Traffic(dense, small + sent, compressed, sent, gathered)


def _times(draw: random.Random, codec: str, size: int, workers: int) -> StepTime:
    encode = ENCODE[codec] * size / 1e6 * draw.uniform(0.9, 1.1)
    decode = 0.3 * encode * workers
    wait = 0.5 if workers == 1 else (4.0 if codec == "none" else 2.0) * size / 1e6 * workers * draw.uniform(0.8, 1.2)
    compute = 60 * size / 1e6 / workers * draw.uniform(0.97, 1.03)
    return StepTime(compute + encode + wait + decode, encode, wait, decode)


LM = Subject("lm", "lstm-small", "kjv")
RECORDS = made_up_study([JOBS[0], JOBS[1], JOBS[4]], seeds=2, trials=4)
STUDY = study_of(RECORDS)


def changed(
    change: Callable[[Record], dict[str, Any]], method: str, setting: str = "", phase: str = "final", task: str = "lm"
) -> Study:
    """The study, had the records of one method and setting with two workers been others."""

    def replaced(record: Record) -> Record:
        chosen = (record.task, record.workers, record.phase) == (task, 2, phase)
        if not chosen or record.method != method or setting not in ("", record.setting):
            return record
        return dataclasses.replace(record, **change(record))

    return study_of(map(replaced, RECORDS))


def scaled(factor: float, *names: str) -> Callable[[Record], dict[str, Any]]:
    return lambda record: {name: factor * getattr(record, name) for name in names}


def slowed(**milliseconds: float) -> Callable[[Record], dict[str, Any]]:
    """Some part of the step takes another time; the rest takes what it took."""

    def change(record: Record) -> dict[str, Any]:
        more = sum(value - getattr(record.milliseconds, name) for name, value in milliseconds.items())
        time = dataclasses.replace(record.milliseconds, **milliseconds)
        return {"milliseconds": dataclasses.replace(time, step=time.step + more)}

    return change


def outcome(study: Study, method: str, setting: str = "", subject: Subject = LM) -> Outcome:
    return next(o for o in study.find(Job(subject, 2), method) if setting in ("", o.setting))
