"""Several hosts on one machine: they are there, their links are limited, and nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.own_launch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
CLUSTER = SCRIPTS / "cluster.sh"
BENCH = SCRIPTS / "bench_exchange.py"
PROBE = f"hvd-probe-{os.getpid()}"
WHAT_IS_NEEDED = f"""
ip netns add {PROBE} && ip -n {PROBE} link add bridge type bridge &&
ip -n {PROBE} link add one type veth peer name two &&
tc -n {PROBE} qdisc add dev one root tbf rate 1mbit burst 9kb limit 9kb
"""
SECONDS = 180
FACTS = """
import horovod.torch as hvd, socket
hvd.init()
facts = hvd.allgather_object((socket.gethostname(), hvd.rank(), hvd.size(), hvd.local_size(), hvd.mpi_enabled()))
if hvd.rank() == 0:
    print(facts)
"""

STREAM = """
import os, socket, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    with socket.create_server(("10.77.0.1", 7777)) as server:
        connection, _ = server.accept()
    connection.recv(65536)
    received = 0
    start = time.perf_counter()
    while piece := len(connection.recv(65536)):
        received += piece
    print("bits/s", 8 * received / (time.perf_counter() - start))
else:
    while True:
        try:
            connection = socket.create_connection(("10.77.0.1", 7777))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    connection.sendall(bytes(8_000_000))
    connection.close()
"""


def cluster(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(CLUSTER), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)  # type: ignore[call-overload]


def refused(done: subprocess.CompletedProcess[str], part: str, status: int = 1) -> bool:
    """Whether the script said one sentence of its own, and why."""
    assert done.returncode == status, done
    assert done.stderr.count("\n") == 1, done
    return done.stderr.startswith("cluster.sh: ") and part in done.stderr


def ours() -> set[str]:
    """Namespaces of a cluster, and links that it would have if it had any outside of them."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.split()
    return {name for name in names if name.startswith("hvdc")} | {
        link for link in links if link.startswith(("hvdc", "port"))
    }


def on_hosts() -> list[str]:
    """Processes on the hosts."""
    pids = []
    for name in ours():
        pids += subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True).stdout.split()
    return pids


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def allowed() -> bool:
    """Whether this machine lets us have what a cluster needs; asked without the script."""
    try:
        return os.geteuid() == 0 and subprocess.run(["sh", "-c", WHAT_IS_NEEDED], capture_output=True).returncode == 0
    finally:
        subprocess.run(["sh", "-c", f"ip netns del {PROBE}"], capture_output=True, check=False)


@pytest.fixture
def hosts(allowed: bool) -> Iterator[bool]:
    """Whether there can be hosts; where not, the refusal has been checked. All are taken down afterwards."""
    if not allowed:
        assert refused(cluster("up"), "this kernel does not let us" if os.geteuid() == 0 else "need root")
        yield False
        return
    assert ours() == set()
    try:
        yield True
    finally:
        assert cluster("down").returncode == 0
        assert ours() == set()


def test_ranks_are_alone_on_hosts_of_their_own(hosts: bool) -> None:
    if not hosts:
        return
    assert cluster("up", "--hosts", "3", "--rate", "unlimited").returncode == 0
    assert refused(cluster("up"), "3 hosts is up already")
    done = cluster("run", "-np", "2", sys.executable, "-c", FACTS, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[('hvdc1', 0, 2, 1, True), ('hvdc2', 1, 2, 1, True)]"
    assert cluster("run", "sh", "-c", "exit $((OMPI_COMM_WORLD_RANK == 2 ? 7 : 0))").returncode == 7
    assert refused(cluster("run", "-np", "4", "true"), "from 1 to 3", status=2)


def test_a_command_runs_on_one_host_that_knows_the_others_by_name(hosts: bool, tmp_path: Path) -> None:
    if not hosts:
        return
    assert cluster("up", "--hosts", "2", "--rate", "unlimited").returncode == 0
    command = ["sh", "-c", 'hostname; getent hosts hvdc1; echo "$1"; exit 7', "sh", "two  words"]
    done = cluster("on", "2", *command, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.stdout.split("\n")[:3] == ["hvdc2", "10.77.0.1       hvdc1", "two  words"]
    assert done.returncode == 7
    assert list(tmp_path.iterdir()) == []
    assert refused(cluster("on", "3", "true"), "from 1 to 2", status=2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_ends_on_its_host(hosts: bool, number: signal.Signals) -> None:
    if not hosts:
        return
    assert cluster("up", "--hosts", "1").returncode == 0
    command = ["bash", str(CLUSTER), "on", "1", "sh", "-c", "trap '' INT TERM; while :; do sleep 1; done"]
    with subprocess.Popen(command) as process:
        wait_until(lambda: len(on_hosts()) >= 2)
        process.send_signal(number)
        assert process.wait(SECONDS) == 128 + number
    assert on_hosts() == []


@pytest.mark.parametrize(("rate", "nominal"), [("100mbit", 100e6), ("1gbit", 1e9)])
def test_a_link_is_as_fast_as_it_is_called(hosts: bool, rate: str, nominal: float) -> None:
    if not hosts:
        return
    assert cluster("up", "--rate", rate).returncode == 0
    done = cluster("run", sys.executable, "-c", STREAM)
    assert done.returncode == 0, done.stderr
    (speed,) = (float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("bits/s"))
    assert 0.5 * nominal < speed < 1.1 * nominal, speed


def test_the_benchmark_measures_the_link(hosts: bool, tmp_path: Path) -> None:
    if not hosts:
        return
    n = 1_000_000
    command = [sys.executable, str(BENCH), "--hosts=2", "--rates=100mbit", "--methods=dense,topk", "--tensors=1"]
    command += [f"--n={n}", "--json", f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    dense, topk = json.loads(done.stdout)
    assert json.loads((tmp_path / "rows.json").read_text()) == [dense, topk]
    assert [(row["method"], row["hosts"], row["rate"], row["n"]) for row in (dense, topk)] == [
        ("dense", 2, "100mbit", n),
        ("topk", 2, "100mbit", n),
    ]
    # Of two ranks each sends half of the gradient to be added, and half of the sum. Open MPI's control messages wait
    # behind its own data, so that at times one direction waits for the other.
    assert 0.25 < 8 * 4 * n / (dense["exchange_ms"] / 1e3) / 100e6 < 1.1
    assert dense["payload_bytes"] == 4 * n
    assert topk["payload_bytes"] < 4 * n / 70
    assert topk["exchange_ms"] < dense["exchange_ms"] / 3
    assert sum(topk[f"{part}_ms"] for part in ("encode", "wait", "decode")) == pytest.approx(
        topk["exchange_ms"], abs=0.1
    )
    assert ours() == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_up_leaves_nothing(hosts: bool, number: signal.Signals) -> None:
    if not hosts:
        return
    with subprocess.Popen(["bash", str(CLUSTER), "up", "--hosts", "90"], start_new_session=True) as process:
        wait_until(ours)
        # As a terminal does it: the whole group.
        os.killpg(process.pid, number)
        assert process.wait(SECONDS) == 128 + number
    assert ours() == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_ranks(hosts: bool, number: signal.Signals) -> None:
    if not hosts:
        return
    assert cluster("up", "--hosts", "2").returncode == 0
    command = ["bash", str(CLUSTER), "run", "sh", "-c", "trap '' INT TERM; while :; do sleep 1; done"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        # mpirun, and a daemon, a shell and its sleep on each host.
        wait_until(lambda: len(on_hosts()) >= 7)
        process.send_signal(number)
        assert process.wait(SECONDS) == 128 + number
    assert on_hosts() == []
    assert len(ours()) == 3


def test_down_ends_what_runs_on_the_hosts(hosts: bool) -> None:
    if not hosts:
        return
    assert cluster("up").returncode == 0
    command = ["bash", str(CLUSTER), "run", "sleep", "600"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(on_hosts()) >= 5)
        assert cluster("down").returncode == 0
        assert process.wait(SECONDS) != 0
    assert ours() == set()


def test_an_interrupted_benchmark_takes_its_hosts_down(hosts: bool, tmp_path: Path) -> None:
    if not hosts:
        return
    command = [sys.executable, str(BENCH), "--hosts=2", "--rates=100mbit", f"--out={tmp_path}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(on_hosts()) >= 5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 130
    assert said == "interrupted; the hosts have been taken down\n"
    assert ours() == set()


def test_without_root_it_says_so() -> None:
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    # Nobody may not be allowed to look into the folder of the checkout.
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as copy:
        copy.write(CLUSTER.read_text())
        copy.flush()
        os.chmod(copy.name, 0o644)
        for arguments in (["up"], ["run", "true"], ["down"]):
            command = [*as_nobody, "bash", copy.name, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd="/")
            assert refused(done, "need root")


def test_without_iproute2_it_says_so(tmp_path: Path) -> None:
    command = ["/bin/bash", str(CLUSTER), "up"]
    env = {"PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=env)
    assert refused(done, "apt install iproute2" if os.geteuid() == 0 else "need root")


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "nosuch",
        "up --hosts 0",
        "up --hosts",
        "up --rate fast",
        "up --nosuch 1",
        "run",
        "run -np x true",
        "on",
        "on 0 true",
        "on 1",
        "down now",
    ],
)
def test_wrong_usage_is_one_sentence_and_status_2(arguments: str) -> None:
    assert refused(cluster(*arguments.split()), "see --help", status=2)


def test_it_helps() -> None:
    done = cluster("--help")
    assert done.returncode == 0
    assert all(part in done.stdout for part in ("up --hosts", "run -np", "on 1", "down", "hvdc1"))
