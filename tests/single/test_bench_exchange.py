"""The benchmark of exchanges: what it accepts, what its rows are, and what it makes of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hvd_compress.bench.exchange_arguments import parse
from hvd_compress.bench.exchange_command import main
from hvd_compress.bench.exchange_report import break_even_text, picture, table
from hvd_compress.bench.exchange_rows import METHODS, Row, load, save
from hvd_compress.bench.resnet50 import shapes
from hvd_compress.registry import codec_class, codec_names
from hvd_compress.study.errors import UsageError

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
KEYS = [
    "method", "hosts", "rate", "n", "tensors", "exchange_ms", "encode_ms", "wait_ms", "decode_ms", "payload_bytes"
]  # fmt: skip
DENSE = Row("dense", 2, "100mbit", 1_000_000, 1, 340.0, 0.0, 340.0, 0.0, 4_000_000)
TOPK = Row("topk", 2, "100mbit", 1_000_000, 1, 17.0, 5.0, 7.0, 5.0, 50_000)
ROWS = [
    DENSE,
    TOPK,
    replace(DENSE, rate="1gbit", exchange_ms=34.0, wait_ms=34.0),
    replace(TOPK, rate="1gbit", exchange_ms=17.0),
    # 16 Gbit/s.
    replace(DENSE, rate="unlimited", exchange_ms=2.0, wait_ms=2.0),
    replace(TOPK, rate="unlimited", exchange_ms=8.0),
]
# Says what it is asked to do, and cannot run anything.
FAKE_CLUSTER = """
echo "$1" >> "${0%/*}/calls"
[ "$1" != run ] || { echo 'mpirun: no' >&2; exit 7; }
"""


@pytest.fixture
def out(tmp_path: Path) -> str:
    return f"--out={tmp_path / 'results'}"


def test_resnet50_has_its_parameters() -> None:
    named = shapes()
    assert (len(named), sum(map(math.prod, named.values()))) == (161, 25_557_032)
    assert named["conv1.weight"] == (64, 3, 7, 7)
    assert named["layer3.0.downsample.0.weight"] == (1024, 512, 1, 1)
    assert named["fc.weight"] == (1000, 2048)
    assert sum(len(shape) == 4 for shape in named.values()) == 53


def test_every_codec_can_be_measured(out: str) -> None:
    names = [name for name in codec_names() if not codec_class(name).wrapper]
    assert parse([f"--methods={','.join(names)}", out], job=False).methods == names


def test_arguments_are_lists(out: str) -> None:
    chosen = "dense,topk:density=0.05,value_dtype=float16,dgc"
    arguments = parse([f"--methods={chosen}", "--hosts=4,2", "--rates=2.5gbit,unlimited", "--n=1e3", out], job=False)
    assert arguments.methods == ["dense", "topk:density=0.05,value_dtype=float16", "dgc"]
    assert (arguments.hosts, arguments.rates, arguments.n) == ([4, 2], ["2.5gbit", "unlimited"], 1000)
    assert (arguments.tensors, arguments.json) == ([1, 161], False)


def test_defaults_are_those_of_a_cluster_or_of_a_job(out: str) -> None:
    alone, job = parse([out], job=False), parse([out], job=True)
    assert alone.methods == job.methods == list(METHODS)
    assert (alone.hosts, alone.rates, alone.n) == ([2, 4], ["100mbit", "1gbit", "unlimited"], 25_600_000)
    assert job.rates == ["own"]
    assert parse(["--rates=rack 7", out], job=True).rates == ["rack 7"]
    assert parse(["--entries=7", out], job=True).n == 7


@pytest.mark.parametrize(
    ("option", "part"),
    [
        ("--hosts=1", "must be from 2 to 99, got '1'"),
        ("--hosts=two", "must be from 2 to 99, got 'two'"),
        ("--rates=fast", "must be like 100mbit or 1gbit, or unlimited, got 'fast'"),
        ("--methods=nosuch", "got 'nosuch'"),
        ("--methods=topk:density=7", "density must be a number in (0, 1], got 7"),
        ("--n=0", "must be at least 1, got 0"),
        ("--n=many", "'many'"),
        ("--tensors=3", "must be 1 or 161, got '3'"),
        ("--steps=0", "must be at least 1, got 0"),
        ("--from=/nosuch/rows.json", "--from must be a file of rows"),
        ("--out=/dev/null/deeper", "cannot make the folder"),
        ("--nosuch", "--nosuch"),
    ],
)
def test_wrong_usage_is_one_sentence_and_status_2(
    option: str, part: str, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(SCRIPTS, [out, option]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert part in said.err


@pytest.mark.parametrize(("option", "part"), [("--hosts=2", "--hosts"), ("--rates=1gbit,2gbit", "--rates")])
def test_a_job_has_its_own_hosts_and_network(option: str, part: str, out: str) -> None:
    with pytest.raises(UsageError, match=part):
        parse([option, out], job=True)


def test_the_script_helps() -> None:
    command = [sys.executable, str(SCRIPTS / "bench_exchange.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0
    assert all(option in done.stdout for option in ("--methods", "--hosts", "--rates", "--tensors", "--json", "--from"))


def test_rows_have_exactly_these_keys(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.json"
    save(ROWS, path)
    assert [list(row) for row in json.loads(path.read_text())] == [KEYS] * len(ROWS)
    assert load(path) == ROWS
    assert [file.name for file in path.parent.iterdir()] == ["rows.json"]


@pytest.mark.parametrize("text", ["{", '[{"method": "dense"}]', "[7]"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(ValueError, match="holds no rows"):
        load(tmp_path / "rows.json")


def test_table_compares_with_dense_on_the_same_network() -> None:
    console = Console(width=120)
    with console.capture() as printed:
        console.print(table(ROWS))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.get().splitlines()]
    assert ["topk", "2", "100mbit", "1", "17.0", "5.0", "7.0", "5.0", "50,000", "20.00"] in cells
    assert ["topk", "2", "unlimited", "1", "8.0", "5.0", "7.0", "5.0", "50,000", "0.25"] in cells


def test_break_even_is_between_a_gain_and_a_loss() -> None:
    # From 2 times at 1 Gbit/s to a quarter at 16 Gbit/s: a third of the way, on logarithmic scales.
    assert break_even_text(ROWS) == "2 hosts, 1 tensor, faster than dense: topk up to 2.52 Gbit/s."
    assert "topk at every speed" in break_even_text(ROWS[:4])
    assert "topk at no speed" in break_even_text(ROWS[4:])


def test_rows_without_dense_have_nothing_to_be_compared_with(tmp_path: Path) -> None:
    assert break_even_text([TOPK]) == ""
    assert picture([TOPK], tmp_path / "speedup.png").exists()


def test_saved_rows_are_shown_again(tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    save(ROWS, tmp_path / "rows.json")
    assert main(SCRIPTS, [f"--from={tmp_path / 'rows.json'}", out]) == 0
    assert "topk up to 2.52 Gbit/s" in capsys.readouterr().out
    assert (tmp_path / "results" / "speedup.png").read_bytes().startswith(b"\x89PNG")
    assert main(SCRIPTS, [f"--from={tmp_path / 'rows.json'}", out, "--json"]) == 0
    assert [list(row) for row in json.loads(capsys.readouterr().out)] == [KEYS] * len(ROWS)


def test_a_failing_run_is_explained_and_its_hosts_taken_down(
    tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.sh").write_text(FAKE_CLUSTER)
    assert main(tmp_path, [out, "--hosts=2", "--rates=1gbit"]) == 1
    assert (tmp_path / "calls").read_text().split() == ["up", "run", "down"]
    assert "mpirun: no" in capsys.readouterr().err
