"""The page of a report and its pictures, and the command that writes them from a database."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from optuna.distributions import FloatDistribution
from optuna.samplers import RandomSampler
from PIL import Image

from hvd_compress.cli.commands import main
from hvd_compress.study.cells import Cell, Place
from hvd_compress.study.database import Database, sqlite_url
from hvd_compress.study.records import Record
from hvd_compress.study.report.charts import Axis, Figure, Line, LinePanel
from hvd_compress.study.report.draw import draw
from hvd_compress.study.report.outcomes import study_of
from hvd_compress.study.report.page import write_report
from tests.study_records import made_up_study

HEADINGS = (
    "What was trained",
    "Recommendation",
    "Where this agrees with the papers, and where not",
    "JointSQ at equal bytes",
    "Speed",
    "Language models",
    "Vision",
    "All results",
)
METHODS = ("none", "jointsq", "qsgd")


def records(task: str, model: str, data: str) -> list[Record]:
    made = made_up_study([(task, model, data, 2)], seeds=2, trials=4)
    return [record for record in made if record.method in METHODS]


STUDY = study_of(records("lm", "lstm-small", "kjv") + records("vision", "vit-small", "digits"))


class Links(HTMLParser):
    """Everything that a browser would fetch or follow, all headings, and tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.headings: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "srcset", "xlink:href", "data")]
        if tag not in ("meta", "link", "br"):
            self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.tags.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.tags.pop()

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_report(STUDY, tmp_path_factory.mktemp("report"))


def test_the_page_has_every_section_and_needs_nothing_beside_it(report: list[Path]) -> None:
    page = report[0].read_text(encoding="utf-8")
    parser = Links()
    parser.feed(page)
    assert tuple(parser.headings) == HEADINGS
    assert parser.tags == []
    assert parser.links
    assert {link[0] for link in parser.links} == {"#"}
    assert set(re.findall(r"url\((.)", page)) == {"#"}
    # The names of the two languages that a picture is written in; nothing is fetched from there.
    assert set(re.findall(r"https?://[^\"<\s]*", page)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_every_picture_is_on_the_page_and_beside_it(report: list[Path]) -> None:
    page = report[0].read_text(encoding="utf-8")
    assert page.count("<svg ") == len(report) - 1
    assert sorted(report[0].parent.glob("*.png")) == sorted(report[1:])
    for path in report[1:]:
        with Image.open(path) as picture:
            assert picture.width > 600
            assert picture.getextrema()[0] != (255, 255)


def test_pictures_take_on_the_colour_of_the_page_and_keep_their_text(report: list[Path]) -> None:
    page = report[0].read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in page
    pictures = page[page.index("<svg ") :]
    assert "currentColor" in pictures
    assert not re.search(r"#0{6}|#010203", pictures)
    assert ">test perplexity</text>" in pictures
    assert ">JointSQ</text>" in pictures


def test_the_same_records_make_the_same_page(report: list[Path], tmp_path: Path) -> None:
    again = write_report(STUDY, tmp_path)
    assert again[0].read_bytes() == report[0].read_bytes()


@pytest.mark.parametrize("values", [(math.nan,) * 3, (1.0, math.nan, 2.0), (5.0, 5.0, 5.0), (1e-3, 1.0, 1e4), ()])
@pytest.mark.parametrize("log", [False, True])
def test_anything_can_be_drawn(values: tuple[float, ...], log: bool, tmp_path: Path) -> None:
    line = Line("topk", "top-k", tuple(map(float, range(1, len(values) + 1))), values)
    panel = LinePanel("", Axis("steps", log=log), Axis("perplexity", log=log, high=100.0), (line,))
    assert "steps" in draw(Figure("any", "", "", (panel,)), tmp_path / "any.png")


def test_a_value_out_of_range_is_written_at_the_edge(tmp_path: Path) -> None:
    line = Line("randomk", "random-k", (1.0, 2.0), (50.0, 777.0))
    panel = LinePanel("", Axis("steps"), Axis("perplexity", high=100.0), (line,))
    text = draw(Figure("edge", "", "", (panel,)), tmp_path / "edge.png")
    assert "777" in text
    assert "777" not in draw(
        Figure("edge", "", "", (dataclasses.replace(panel, y=Axis("perplexity")),)), tmp_path / "edge.png"
    )


def keep(url: str, preset: str, kept: list[Record]) -> None:
    """Put records into a database as a study does."""
    database = Database(url)
    space = {"learning_rate": FloatDistribution(1, 100), "dropout": FloatDistribution(0, 1)}
    places: dict[Cell, int] = {}
    for record in kept:
        cell = Cell(preset, record.task, record.model, record.data, record.workers, record.method, record.setting)
        number = places[cell] = places.get(cell, -1) + 1
        running = database.trials(cell, {}).begin(Place("search", number), space, RandomSampler(number))
        assert running is not None
        running.finish(record)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["study", "report", *map(str, arguments)])
    return status, *capsys.readouterr()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("database") / "study.db"
    made = records("lm", "lstm-small", "kjv")
    keep(sqlite_url(path), "laptop", [record for record in made if record.phase == "search"])
    return path


def test_the_command_makes_the_report_from_the_database_alone(database: Path, tmp_path: Path) -> None:
    command = ["study", "report", "--storage", database, "--out", tmp_path / "new", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "hvd_compress", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert {Path(name) for name in said["files"]} == set((tmp_path / "new").iterdir())
    settings = [(result["method"], result["setting"]) for result in said["results"]]
    assert settings[:2] == [("none", ""), ("qsgd", "7bit")]
    assert "search only" in (tmp_path / "new" / "report.html").read_text(encoding="utf-8")


def test_the_command_says_in_short_what_pays_and_what_holds(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "--storage", sqlite_url(database), "--preset", "laptop", "--out", tmp_path)
    assert (status, err) == (0, "")
    said = " ".join(out.split())
    assert "Which method for which link" in said
    assert "QSGD with 3 bit is not more than 4 % above dense holds" in said
    assert f"Page: {tmp_path / 'report.html'}" in said


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--storage", "none.db"), 2, "--storage: there is no database"),
        (("--storage", "nonsense://x"), 2, "--storage: cannot open the storage nonsense://x"),
        (("--storage", "study.db", "--preset", "paper"), 1, "there is no trial of the preset paper that has ended"),
        (("--storage", "study.db", "--out", "study.db"), 2, "--out: cannot write into study.db"),
    ],
)
def test_wrong_use_is_said_in_one_sentence(
    arguments: tuple[str, ...],
    status: int,
    says: str,
    database: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(database.parent)
    ended, out, err = run(capsys, "--out", "unused", *arguments)
    assert (ended, out, err.count("\n")) == (status, "", 1)
    assert says in err
    assert list(database.parent.iterdir()) == [database]


def test_presets_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = sqlite_url(tmp_path / "both.db")
    some = [record for record in records("lm", "lstm-small", "kjv") if record.method == "none"]
    keep(url, "laptop", some[:1])
    keep(url, "smoke", some[1:2])
    status, _, err = run(capsys, "--storage", url, "--out", tmp_path / "out")
    assert status == 2
    assert "--preset: must be one of laptop, smoke" in err
