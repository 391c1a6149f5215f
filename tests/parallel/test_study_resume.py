"""A study that is killed in the middle, and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest

from hvd_compress.study.database import load_records, sqlite_url
from tests.parallel.ranks import REPOSITORY

pytestmark = pytest.mark.own_launch

LIMIT_SECONDS = 240.0
"""How long a study of 10 trials may take; 30 are usual."""

CELLS = 2
TRIALS, SEEDS = 3, 2


def command(out: Path) -> list[str]:
    asked = {"methods": "none,topk", "models": "lstm-small", "workers": "2", "trials": TRIALS, "seeds": SEEDS}
    options = [f"--{name}={value}" for name, value in asked.items()]
    return [sys.executable, "-m", "hvd_compress", "study", "lm", "--preset=smoke", f"--out={out}", "--json", *options]


def environment() -> dict[str, str]:
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


@contextmanager
def started(out: Path) -> Iterator[subprocess.Popen[str]]:
    """The study, of which nothing is left on leaving."""
    process = subprocess.Popen(
        command(out), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        until_gone(out)


def workers_of(out: Path) -> list[int]:
    """Processes of the study's jobs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"hvd_compress.study.job" in words and any(str(out).encode() in word for word in words):
            found.append(int(path.parent.name))
    return found


def until_gone(out: Path) -> None:
    """Wait for workers that nobody wants any more to end by themselves."""
    deadline = time.monotonic() + 60
    while workers_of(out):
        assert time.monotonic() < deadline, "workers are left"
        time.sleep(0.1)


def wait_for_trial(process: subprocess.Popen[str], number: int) -> None:
    """Return in the middle of a trial."""
    assert process.stderr is not None
    ended = 0
    for line in process.stderr:
        ended += "validation" in line
        if ended == number:
            break
    assert ended == number, "the study has ended before"
    # What starts next takes about two seconds.
    time.sleep(0.7)


def test_killed_outright_twice_and_resumed_no_trial_is_lost_or_made_twice(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "study.db")
    before: list[str] = []
    for ended in (2, 2):
        with started(tmp_path) as process:
            wait_for_trial(process, ended)
            process.send_signal(signal.SIGKILL)
        kept = [json.dumps(record.as_dict()) for record in load_records(url)]
        assert len(kept) >= len(before) + ended
        assert set(before) <= set(kept)
        before = kept
    done = subprocess.run(
        command(tmp_path), capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment(), check=True
    )
    assert [row["trials"] for row in json.loads(done.stdout)] == [TRIALS] * CELLS
    assert [row["seeds"] for row in json.loads(done.stdout)] == [SEEDS] * CELLS
    after = [json.dumps(record.as_dict()) for record in load_records(url)]
    assert set(before) <= set(after)
    assert len(after) == CELLS * (TRIALS + SEEDS)
    assert_once_each(url)


def assert_once_each(url: str) -> None:
    failed = 0
    for name in optuna.get_all_study_names(url):
        trials = optuna.load_study(study_name=name, storage=url).trials
        complete = [trial for trial in trials if trial.state == optuna.trial.TrialState.COMPLETE]
        places = Counter(tuple(trial.user_attrs["place"]) for trial in complete)
        assert set(places.values()) == {1}
        parameters = {tuple(trial.user_attrs["place"]): trial.params for trial in complete}
        for trial in trials:
            if trial.state == optuna.trial.TrialState.FAIL and "place" in trial.user_attrs:
                failed += 1
                assert parameters[tuple(trial.user_attrs["place"])] == trial.params
    assert failed >= 1, "nothing was interrupted"


def test_an_interrupted_study_says_how_to_go_on_and_leaves_no_process(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        wait_for_trial(process, 1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert "interrupted; the same command goes on from here" in said
        assert workers_of(tmp_path) == []
