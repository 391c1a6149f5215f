"""One trial of a study on one rank: train with given hyper-parameters until that brings nothing more."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch

from hvd_compress.study.cells import Cell, Place
from hvd_compress.study.methods import codec_of, compression_of
from hvd_compress.study.plans import Plan
from hvd_compress.study.records import Record
from hvd_compress.study.stopping import EarlyStopping
from hvd_compress.study.torch_course import Course, Watch
from hvd_compress.study.torch_models import Data, build_task
from hvd_compress.study.workers import Workers

__all__ = ["run_trial"]


def run_trial(
    cell: Cell, place: Place, parameters: Mapping[str, float], plan: Plan, data: Data, workers: Workers, watch: Watch
) -> Record:
    """Train, and test the parameters that were best in validation; every rank of the job calls it.

    A run whose gradients or whose validation score are no longer finite has diverged: it ends, and its scores are NaN.

    Parameters
    ----------
    cell : Cell
    place : Place
        A draw of the search (seed 0), or a final trial (with a seed of its own).
    parameters : mapping
        Hyper-parameters: ``learning_rate``, and ``dropout`` and ``momentum`` where they are searched for.
    plan : Plan
    data : Data
        The same on every rank.
    workers : Workers
    watch : callable

    Returns
    -------
    Record
        The same on all ranks, but for times, and bytes of codecs whose payloads vary with the data.
    """
    began = time.monotonic()
    seed = place.seed
    task = build_task(cell, data, plan, parameters, seed, workers)
    text = compression_of(cell.method, cell.setting, parameters, task.specs())
    momentum = 0.0 if codec_of(cell.method, cell.setting).has_momentum else plan.momentum
    course = Course(task, text, plan, parameters, momentum)
    torch.manual_seed(seed * workers.size + workers.rank)
    stopping = EarlyStopping(cell.direction, plan.patience)
    course.run(plan.looks_of(place.phase), stopping, watch)
    ranks_equal = len(set(workers.gather(task.crc32(), "crc32"))) == 1
    traffic, milliseconds = course.meter.means()
    return Record(
        cell.task,
        cell.model,
        cell.data,
        cell.workers,
        cell.method,
        cell.setting,
        compression=text,
        phase=place.phase,
        seed=seed,
        parameters=dict(parameters),
        model_size=sum(array.size for array in task.parameters()),
        looks=tuple(course.looks),
        best_step=0 if course.diverged else course.best_step,
        validation_score=math.nan if course.diverged else stopping.best,
        test_score=math.nan if course.diverged else course.test_score(),
        traffic=traffic,
        milliseconds=milliseconds,
        seconds=time.monotonic() - began,
        ranks_equal=ranks_equal,
    )
