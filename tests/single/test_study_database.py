"""The database of a study, and what its schedule draws next: interrupted, resumed, and on several machines."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from hvd_compress.study.cells import FINAL, SEARCH, Cell, Place
from hvd_compress.study.database import Database, load_records, sqlite_url
from hvd_compress.study.errors import UsageError
from hvd_compress.study.plans import Plan, Range
from hvd_compress.study.records import Look, Record
from hvd_compress.study.results import StepTime, Traffic
from hvd_compress.study.schedule import Assignment, Schedule, is_done
from hvd_compress.study.trials import Running

CELL = Cell("laptop", "lm", "lstm-small", "kjv", 2, "topk", "0.01")
DGC = Cell("laptop", "lm", "lstm-small", "kjv", 2, "dgc", "0.01")
SPACE = {"learning_rate": Range(1, 50, log=True), "dropout": Range(0, 0.8), "momentum": Range(0.1, 0.9)}
START = {"learning_rate": 20.0, "dropout": 0.0, "momentum": 0.3}
PLAN = Plan((), SPACE, batch_size=8, looks=2, search_looks=1, trials=5, seeds=2, start=START)
FACTS = {"steps": 10}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "study.db")


def schedule(url: str, *cells: Cell) -> Schedule:
    return Schedule(cells or (CELL,), PLAN, Database(url), FACTS)


def record(assignment: Assignment, score: float) -> Record:
    cell, place = assignment.cell, assignment.place
    assert cell is not None
    return Record(
        *(cell.task, cell.model, cell.data, cell.workers, cell.method, cell.setting, "topk:density=0.01"),
        *(place.phase, place.seed, dict(assignment.parameters or {}), 1000),
        looks=(Look(10, 0.5, 400, 6.0, score),),
        best_step=10,
        validation_score=score,
        test_score=score + 1,
        traffic=Traffic(4000, 40, 4000, 40, 40),
        milliseconds=StepTime(80.0, 3.0, 20.0, 1.0),
        seconds=1.5,
        ranks_equal=True,
    )


def distance(assignment: Assignment) -> float:
    """A score that is best at a learning rate of 5."""
    assert assignment.parameters is not None
    return 100 + abs(math.log(assignment.parameters["learning_rate"] / 5))


def work_off(
    planned: Schedule, trials: int | None = None, score: Callable[[Assignment], float] = distance
) -> list[Assignment]:
    """Finish so many trials, or all."""
    done = []
    while (trials is None or len(done) < trials) and (assignment := planned.next()):
        assert isinstance(planned.running, Running)
        planned.running.finish(record(assignment, score(assignment)))
        done.append(assignment)
    return done


def test_a_cell_is_searched_and_then_its_best_is_trained_with_several_seeds(url: str) -> None:
    done = work_off(schedule(url))
    assert [assignment.place for assignment in done] == PLAN.places()
    best = min(done[:5], key=distance)
    assert [assignment.parameters for assignment in done[5:]] == [best.parameters] * 2
    assert done[0].parameters == {"learning_rate": 20.0, "dropout": 0.0}
    assert len({assignment.parameters["learning_rate"] for assignment in done[:5] if assignment.parameters}) == 5


def test_momentum_is_searched_for_where_the_method_applies_it(url: str) -> None:
    done = work_off(schedule(url, DGC))
    assert {tuple(sorted(assignment.parameters or {})) for assignment in done} == {
        ("dropout", "learning_rate", "momentum")
    }


def test_sittings_do_not_matter(url: str, tmp_path: Path) -> None:
    straight = work_off(schedule(url, CELL, DGC))
    other = sqlite_url(tmp_path / "other.db")
    pieces: list[Assignment] = []
    for trials in (1, 3, 2, 4, 20):
        pieces += work_off(schedule(other, CELL, DGC), trials)
    assert pieces == straight
    assert load_records(other) == load_records(url)


def test_what_was_running_is_drawn_again_with_the_same_hyper_parameters(url: str) -> None:
    work_off(schedule(url), 2)
    program = (
        "from tests.single.test_study_database import schedule\n"
        f"assignment = schedule({url!r}).next()\n"
        "print(*assignment.place, *assignment.parameters.values())"
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    # The history changes meanwhile, as it does where several machines work on a cell.
    study = optuna.load_study(study_name=CELL.name, storage=url)
    study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL))
    again = schedule(url).next()
    assert again is not None
    assert again.parameters is not None
    assert [*map(str, again.place), *map(str, again.parameters.values())] == killed == [SEARCH, "2", *killed[2:]]


def test_a_trial_killed_between_record_and_end_is_not_lost(url: str) -> None:
    planned = schedule(url)
    assignment = planned.next()
    assert assignment is not None
    study = optuna.load_study(study_name=CELL.name, storage=url)
    study._storage.set_trial_user_attr(study.trials[0]._trial_id, "record", record(assignment, 123.0).as_dict())
    following = schedule(url).next()
    assert following is not None
    assert following.place == Place(SEARCH, 1)
    assert [found.validation_score for found in load_records(url)] == [123.0]


def test_a_machine_leaves_to_the_others_what_they_are_at(url: str) -> None:
    first, second = schedule(url), schedule(url)
    places = [planned.next() for planned in (first, second, first, second, first)]
    assert [assignment.place.number for assignment in places if assignment] == [0, 1, 2, 3, 4]
    waiting = second.next()
    assert waiting is not None
    assert waiting.cell is None


def test_the_faster_of_two_machines_has_the_place(url: str) -> None:
    slow, fast = Database(url).trials(CELL, FACTS), Database(url).trials(CELL, FACTS)
    space, sampler = {"learning_rate": optuna.distributions.FloatDistribution(1, 2)}, optuna.samplers.RandomSampler(0)
    assert fast.begin(Place(SEARCH, 0), space, sampler)
    assert slow.begin(Place(SEARCH, 0), space, sampler) is None
    assert fast.running() == {Place(SEARCH, 0)}


def test_a_cell_that_always_diverges_has_no_final_trials(url: str) -> None:
    done = work_off(schedule(url), score=lambda assignment: math.nan)
    assert [assignment.place.phase for assignment in done] == [SEARCH] * 5
    records = load_records(url)
    assert all(math.isnan(found.validation_score) for found in records)
    assert is_done(CELL, PLAN, Database(url).trials(CELL, FACTS))


def test_a_diverged_draw_is_worse_than_every_other(url: str) -> None:
    done = work_off(schedule(url), score=lambda assignment: math.nan if assignment.place.number < 4 else 1e9)
    assert done[5].parameters == done[4].parameters
    assert done[5].place.phase == FINAL


def test_records_survive_the_database(url: str) -> None:
    done = work_off(schedule(url, CELL, DGC), 9)
    assert load_records(url) == [record(assignment, distance(assignment)) for assignment in done]
    assert len(load_records(url, preset="laptop")) == 9
    assert load_records(url, preset="smoke") == []


def test_other_facts_are_refused(url: str) -> None:
    schedule(url)
    with pytest.raises(UsageError, match=r"laptop/.* with steps 10 \(now 20\); take another --out"):
        Schedule([CELL], PLAN, Database(url), {"steps": 20})


def test_a_database_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with pytest.raises(UsageError, match="there is no database"):
        load_records(sqlite_url(path))
    assert not path.exists()


@pytest.mark.parametrize("wrong", ["nosuch://host/db", "study.db", "sqlite:////nosuch/folder/study.db"])
def test_a_storage_that_cannot_be_opened_is_named_in_one_sentence(wrong: str) -> None:
    with pytest.raises(UsageError, match="cannot open the storage") as caught:
        Database(wrong)
    assert "\n" not in str(caught.value)


def test_final_trials_are_made_again_when_the_search_goes_on_and_finds_something_better(url: str) -> None:
    work_off(schedule(url))
    more = Schedule([CELL], dataclasses.replace(PLAN, trials=7), Database(url), FACTS)
    done = work_off(more, score=lambda assignment: 150.0 if assignment.place.number == 5 else 10.0)
    searched, repeated = [Place(SEARCH, 5), Place(SEARCH, 6)], [Place(FINAL, 0), Place(FINAL, 1)]
    assert [assignment.place for assignment in done] == [*searched, *repeated]
    finals = [found for found in load_records(url) if found.phase == FINAL]
    assert [found.parameters for found in finals] == [done[1].parameters] * 2
