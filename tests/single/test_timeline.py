"""Traces are joined on one clock, and what cannot be joined is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_compress.__main__ import main
from hvd_compress.timeline import Timeline, join

START = "start_time_since_epoch_in_micros"


def horovods(path: Path, start: int) -> Path:
    """A trace as Horovod leaves it: without an end until it is shut down."""
    events = [{"ph": "M", "pid": 0, "args": {START: start}}, {"ph": "B", "name": "ALLREDUCE", "ts": 5, "pid": 1}]
    path.write_text("[\n" + "".join(json.dumps(event) + ",\n" for event in events))
    return path


def test_times_are_moved_to_the_first_trace_s_clock(tmp_path: Path) -> None:
    first, second = horovods(tmp_path / "a.json", 1000), horovods(tmp_path / "b.json", 1700)
    assert [event["ts"] for event in join([first, second]) if "ts" in event] == [5, 705]
    assert [event["ts"] for event in join([second, first]) if "ts" in event] == [5, -695]


def test_a_trace_is_written_when_it_is_flushed(tmp_path: Path) -> None:
    timeline = Timeline(str(tmp_path / "new" / "trace.json"), 3)
    timeline.add("w", "encode", timeline._start + 1.0, timeline._start + 1.5)
    timeline.flush()
    (mark,) = (event for event in join([tmp_path / "new" / "trace.3.json"]) if event["ph"] == "X")
    assert (mark["name"], mark["ts"], mark["dur"]) == ("encode", pytest.approx(1e6), pytest.approx(5e5))


def test_the_command_writes_the_joined_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(horovods(tmp_path / name, 1000)) for name in ("a.json", "b.json")]
    assert main(["timeline", *paths]) == 0
    assert json.loads(capsys.readouterr().out) == join(paths)
    assert main(["timeline", *paths, "--out", str(tmp_path / "c.json")]) == 0
    assert json.loads((tmp_path / "c.json").read_text()) == join(paths)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("[{", "no trace in Chrome's format"), ("{}", "Chrome's format"), ("[", "no event tells")],
)
def test_other_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    assert main(["timeline", str(path)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert str(path) in error
