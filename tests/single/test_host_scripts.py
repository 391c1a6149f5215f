"""The scripts that train on hosts, containers and nodes: how they are used, what they refuse, what they compare."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_compress.study.results import RunResult, StepTime, Traffic

SCRIPTS = Path(__file__).parents[2] / "scripts"
TESTS = ("test_cluster.sh", "test_docker.sh", "test_slurm.sh")
SECONDS = 30
DENSE = RunResult(
    config={},
    workers=2,
    parameters=1000,
    curve=(),
    test_perplexity=100.0,
    traffic=Traffic(4000, 4000, 4000, 4000, 0),
    milliseconds=StepTime(2.0, 0.0, 1.0, 0.0),
    seconds=1.0,
    parameter_crc32=(7, 7),
)
COMPRESSED = replace(DENSE, traffic=Traffic(4000, 40, 4000, 40, 40))


def ran(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)  # type: ignore[call-overload]


def refused(done: subprocess.CompletedProcess[str], script: str, part: str, status: int = 1) -> bool:
    """Whether the script said one sentence of its own, and why."""
    assert done.returncode == status, done
    assert done.stderr.count("\n") == 1, done
    return done.stderr.startswith(f"{script}: ") and part in done.stderr


@pytest.mark.parametrize("script", [*TESTS, "sshd.sh"])
def test_they_help(script: str) -> None:
    done = ran("bash", SCRIPTS / script, "--help")
    assert done.returncode == 0
    assert f"bash scripts/{script}" in done.stdout
    # The whole comment, and nothing below it.
    assert done.stdout.strip().endswith((".", ")"))
    assert "set -euo" not in done.stdout


@pytest.mark.parametrize(
    ("script", "arguments"), [*((name, "fast") for name in TESTS), ("sshd.sh", "0x5"), ("sshd.sh", "1 2")]
)
def test_wrong_usage_is_one_sentence_and_status_2(script: str, arguments: str) -> None:
    assert refused(ran("bash", SCRIPTS / script, *arguments.split()), script, "see --help", status=2)


@pytest.mark.parametrize("script", TESTS)
def test_without_root_they_say_so(script: str, tmp_path: Path) -> None:
    copy = tmp_path / script
    copy.write_text((SCRIPTS / script).read_text())
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    # No engine of Docker's either.
    done = ran(*as_nobody, "bash", copy, env={"PATH": "/usr/bin:/bin", "DOCKER_HOST": "tcp://127.0.0.1:9"})
    assert refused(done, script, "root")


@pytest.mark.parametrize("script", [*TESTS, "sshd.sh"])
def test_what_is_missing_is_named_with_its_package(script: str, tmp_path: Path) -> None:
    for name in ("dirname", "mktemp", "bash"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    text = (SCRIPTS / script).read_text().replace("/usr/sbin", "/nowhere").replace("/usr/local/sbin", "/nowhere")
    copy = tmp_path / script
    copy.write_text(text)
    done = ran("/bin/bash", copy, env={"PATH": str(tmp_path)})
    assert refused(done, script, "root" if os.geteuid() and script in TESTS else "apt install")


def test_an_ssh_server_ends_with_its_script_and_leaves_no_key(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        ["bash", SCRIPTS / "sshd.sh", "54321"], stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        said = process.stderr.readline()  # type: ignore[union-attr]
        if "apt install openssh-server" in said:
            assert process.wait(SECONDS) == 1
            return
        assert re.fullmatch(r"Server listening on .* port 54321\.\n", said)
        assert list(tmp_path.glob("*/host"))
        process.terminate()
        assert process.wait(SECONDS) != 0
    deadline = time.monotonic() + SECONDS
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def compared(folder: Path, *runs: tuple[RunResult, str], ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Compare the ranks of runs, each with what two hosts had sent before and after it."""
    folders = []
    for number, (run, link_bytes) in enumerate(runs):
        folders.append(folder / f"run{number}")
        folders[-1].mkdir()
        run.save(folders[-1])
        (folders[-1] / "link_bytes").write_text(link_bytes)
    return ran(sys.executable, SCRIPTS / "equal_ranks.py", "--ranks", str(ranks), *folders)


def test_equal_ranks_that_sent_less_are_well(tmp_path: Path) -> None:
    done = compared(tmp_path, (DENSE, "0 0 3000000 5000000"), (COMPRESSED, "3000000 5000000 4000000 6000000"))
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert rows == [["run0", "2", "yes", "4,000", "1.0", "4.0", "2"], ["run1", "2", "yes", "40", "100.0", "1.0", "2"]]


@pytest.mark.parametrize(
    ("run", "link_bytes", "part"),
    [
        (
            replace(COMPRESSED, parameter_crc32=(7, 8)),
            "0 0 9 9",
            "run1: the ranks end with different parameters, (7, 8)",
        ),
        (replace(COMPRESSED, workers=1), "0 0 9 9", "run1: 2 ranks were asked for, and 1 have trained"),
        (COMPRESSED, "0 0 3000 3000", "run1: a host sent 3,000 bytes, in the dense run 4,000"),
    ],
)
def test_unequal_ranks_are_named(tmp_path: Path, run: RunResult, link_bytes: str, part: str) -> None:
    done = compared(tmp_path, (DENSE, "0 0 4000 4000"), (run, link_bytes))
    assert refused(done, "equal_ranks.py", part)
