"""Workers die and others join while a model is trained: with compression, too, Horovod's elastic training goes on."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from hvd_compress.registry import codec_from_config
from tests.parallel import elastic_interrupted, elastic_job, elastic_run
from tests.parallel.elastic_job import FIRST, SECOND, THIRD, Job, Line
from tests.parallel.models import (
    Gather,
    assert_in_sync,
    bits,
    compressor,
    every_codec,
    network,
    parameters_of,
    states,
    train,
    without_advice,
    wrap,
)

pytestmark = without_advice

WINDOW = 10
"""Steps whose losses count together."""


class Round:
    """What the workers of one round have written."""

    def __init__(self, begins: list[Line], steps: list[Line], commits: list[Line]) -> None:
        self.begins = {line["pid"]: line for line in begins}
        self.commits = {line["pid"]: line for line in commits}
        self.by_batch: dict[int, list[Line]] = defaultdict(list)
        for line in steps:
            self.by_batch[line["batch"]].append(line)

    def complete(self, size: int) -> int:
        """Return the number of steps that all of so many workers have made."""
        return sum(len(lines) == size for lines in self.by_batch.values())

    @property
    def loss(self) -> float:
        """Mean over the last steps and over the ranks."""
        return fmean(line["loss"] for batch in sorted(self.by_batch)[-WINDOW:] for line in self.by_batch[batch])


def rounds(job: Job) -> list[Round]:
    """Return the rounds so far that came to a step."""
    names = dict.fromkeys(line["round"] for line in job.lines("step"))
    kinds = [job.lines(kind) for kind in ("begin", "step", "commit")]
    return [Round(*([line for line in lines if line["round"] == name] for lines in kinds)) for name in names]


def has_come(job: Job, number: int, size: int, steps: int) -> bool:
    """Say whether the round of that number has so many workers and all of them have made so many steps."""
    so_far = rounds(job)
    return len(so_far) > number and so_far[number].complete(size) >= steps


def check_together(this: Round) -> None:
    """Check that after each step the workers have the same parameters, and that none was left out of the count."""
    for batch, lines in this.by_batch.items():
        assert all(line["model"] == lines[0]["model"] for line in lines)
        # Draws and tags depend on it.
        assert all(line["steps"] == {"0.bias": batch + 1} for line in lines)


def check_handover(last: Round, this: Round) -> None:
    """Check that all go on from the last commit, each with what it had not sent, and new workers with nothing."""
    first = next(line for line in this.begins.values() if line["rank"] == 0)
    assert this.begins.keys() & last.begins.keys()
    for pid, begin in this.begins.items():
        assert begin["batch"] == min(this.by_batch) == first["batch"] == last.commits[first["pid"]]["batch"]
        for name, kept in begin["kept"].items():
            if "bias" in name:
                # Momentum that is applied after the reduction is the same for all.
                assert kept == first["kept"][name] != ""
            else:
                assert kept == (last.commits[pid]["kept"][name] if pid in last.begins else "")
    assert any(any(begin["kept"].values()) for begin in this.begins.values())


CHANGES = {
    "topk": ("topk:density=0.2", "topk:density=0.1,scope=model,rebudget_steps=2", 0),
    "dgc": ("dgc:density=0.2,momentum=0.5", "dgc:density=0.1,momentum=0.5", 3),
    "randomk": ("randomk:density=0.2", "randomk:density=0.1", 1),
}


@pytest.mark.own_launch
@pytest.mark.parametrize(("config", "later", "victim"), list(CHANGES.values()), ids=list(CHANGES))
def test_training_outlives_a_worker_and_takes_in_new_ones(tmp_path: Path, config: str, later: str, victim: int) -> None:
    with elastic_job.started(tmp_path, "tests.parallel.elastic_run", [config, later]) as job:
        job.until(lambda: has_come(job, 0, 4, 20))
        dead = next(line for line in job.lines("begin") if line["rank"] == victim)
        os.kill(dead["pid"], signal.SIGKILL)
        job.until(lambda: has_come(job, 1, 2, 20))
        job.offer(FIRST, SECOND, THIRD)
        job.until(lambda: has_come(job, 2, 4, 10))
        (tmp_path / elastic_run.LAST).touch()
        assert job.status() == 0, job.said()
        first, second, third = rounds(job)
    assert {line["host"] for line in second.begins.values()} == {FIRST, SECOND} - {dead["host"]}
    assert second.begins.keys() < third.begins.keys()
    for this in (first, second, third):
        check_together(this)
    check_handover(first, second)
    check_handover(second, third)
    assert second.loss < first.loss
    assert third.loss < first.loss


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job whose steps failed half-way, after its end."""
    with elastic_job.started(
        tmp_path_factory.mktemp("interrupted"), "tests.parallel.elastic_interrupted", slots=1
    ) as job:
        assert job.status() == 0, job.said()
    return job


@pytest.mark.own_launch
@pytest.mark.parametrize("name", elastic_interrupted.NAMES)
def test_steps_that_fail_half_way_leave_nothing_behind(interrupted: Job, name: str) -> None:
    """F070."""

    def values(kind: str, case: str, what: str) -> dict[tuple[int, int], Any]:
        lines = [line for line in interrupted.lines(kind) if line["case"] == case]
        return {(line["rank"], line.get("batch", 0)): line[what] for line in lines}

    for kind, what in (("end", "bits"), ("end", "steps"), ("step", "handles")):
        ours, undisturbed = values(kind, name, what), values(kind, f"{name}-undisturbed", what)
        assert ours == undisturbed
        assert {rank for rank, _ in ours} == {0, 1}
    nbytes = values("memory", name, "nbytes")
    for rank in (0, 1):
        assert max(nbytes[rank, 12], nbytes[rank, 18]) < 1.01 * nbytes[rank, 6]


@pytest.mark.own_launch
@pytest.mark.parametrize("skip_sync", [True, False])
def test_changes_of_hosts_are_noticed_between_two_commits_too(interrupted: Job, skip_sync: bool) -> None:
    ends = [line for line in interrupted.lines("end") if line["case"] == f"updated-{skip_sync}"]
    assert [line["rank"] for line in sorted(ends, key=lambda line: int(line["rank"]))] == [0, 1]
    assert ends[0]["bits"] == ends[1]["bits"]
    assert ends[0]["steps"] == ends[1]["steps"]


def new_state(hvd: Any, config: str) -> Any:
    """Return the elastic state of a worker that begins."""
    model, compression = network(), compressor(config)
    optimizer = wrap(hvd, model, compression)
    return hvd.elastic.TorchState(model=model, optimizer=optimizer, compression=compression, batch=0)


@pytest.mark.launches(("mpi", 2))
@every_codec
def test_a_new_worker_goes_on_as_the_others(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    state = new_state(hvd, config)
    train(state.model, state.optimizer, rank, range(5))
    old = state.compression.progress()
    if rank == 1:
        state = new_state(hvd, config)
    state.sync()
    progress = state.compression.progress()
    assert gather(progress.steps) == [{"0.bias": 5}] * 2
    for key, saved in progress.tensors.items():
        # Of small tensors all is equal on all ranks.
        codec = codec_from_config(saved["codec"])
        for name, array in saved["state"].items():
            unchanged = bits(array) == bits(old.tensors[key]["state"][name])
            kept = "bias" in key or name in codec.common_states or rank == 0
            assert unchanged if kept and not codec.entangled else not array.any()
    train(state.model, state.optimizer, rank, range(5, 10))
    assert_in_sync(gather, state.model)
    assert gather(state.compression.progress().steps) == [{"0.bias": 10}] * 2


@pytest.mark.launches(("mpi", 2))
@every_codec
def test_going_back_to_a_commit_makes_the_same_steps_again(hvd: Any, rank: int, gather: Gather, config: str) -> None:
    state, ends = new_state(hvd, config), []
    train(state.model, state.optimizer, rank, range(3))
    state.commit()
    for _ in range(2):
        train(state.model, state.optimizer, rank, range(3, 6))
        ends.append((parameters_of(state.model), states(state.compression)))
        state.restore()
        state.sync()
    assert ends[0] == ends[1]
    assert_in_sync(gather, state.model)


@pytest.mark.launches(("mpi", 2))
def test_changes_are_committed_and_told_to_new_workers(hvd: Any, rank: int, gather: Gather) -> None:
    state = new_state(hvd, "topk:density=0.2")
    train(state.model, state.optimizer, rank, range(3))
    state.commit()
    state.compression.reconfigure("topk:density=0.1")
    train(state.model, state.optimizer, rank, range(3, 5))
    state.restore()
    state.sync()
    assert state.compression.policy == compressor("topk:density=0.2").policy
    state.compression.reconfigure("topk:density=0.1")
    train(state.model, state.optimizer, rank, range(3, 5))
    state.compression.reconfigure("topk:density=0.1,error_feedback=false")
    state.commit()
    if rank == 1:
        state = new_state(hvd, "topk:density=0.2")
    state.sync()
    assert state.compression.policy == compressor("topk:density=0.1,error_feedback=false").policy
    train(state.model, state.optimizer, rank, range(5, 8))
    assert_in_sync(gather, state.model)
