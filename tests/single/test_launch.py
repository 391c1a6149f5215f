"""Workers are started as this machine needs it, and none outlives its launch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from hvd_compress.launch import Launcher, LaunchError, run_workers, started_workers, worker_command

LAUNCHERS = get_args(Launcher)
RANK = "(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['HOROVOD_RANK'])"
# In one piece: mpirun mixes what ranks write in several.
PRINT_RANK = f"import os; os.write(1, ('rank ' + {RANK} + '\\n').encode())"
# Starts a grandchild in a session of its own, as launchers do, and never ends by itself.
NEVER_ENDS = """
import os, pathlib, subprocess, sys, time
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **quiet)
path = pathlib.Path(sys.argv[1])
(path / f"{os.getpid()}.new").write_text(f"{os.getpid()} {child.pid}")
(path / f"{os.getpid()}.new").rename(path / f"{os.getpid()}.pids")
time.sleep(600)
"""


@pytest.fixture
def programs_without_ssh(tmp_path: Path) -> str:
    """A folder with every system program except the ssh clients."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for program in [*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()]:
        link = folder / program.name
        if program.name not in ("ssh", "rsh", "slogin") and not link.is_symlink():
            link.symlink_to(program)
    assert shutil.which("ssh", path=str(folder)) is None
    return str(folder)


def pids_in(folder: Path) -> list[int]:
    """Return the processes that workers wrote down."""
    return [int(pid) for path in folder.glob("*.pids") for pid in path.read_text().split()]


def running(pids: list[int]) -> list[int]:
    """Return those that still run; a zombie, whose parent has not looked yet, does not."""
    states = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [
        pid for pid, stat in states.items() if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    ]


def wait_for_workers(folder: Path, workers: int) -> list[int]:
    """Wait until every worker has started its child; return all of them."""
    deadline = time.monotonic() + 60
    while len(pids := pids_in(folder)) < 2 * workers and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2 * workers
    return pids


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_rank_runs_the_program(launcher: Launcher) -> None:
    done = run_workers(
        [sys.executable, "-c", PRINT_RANK], workers=2, launcher=launcher, timeout=60, stdout=subprocess.PIPE
    )
    assert done.returncode == 0
    assert {line[-6:] for line in done.stdout.decode().splitlines()} == {"rank 0", "rank 1"}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_failing_rank_gives_a_failing_status(launcher: Launcher) -> None:
    failing = f"import os, sys; sys.exit(3 if {RANK} == '1' else 0)"
    done = run_workers(
        [sys.executable, "-c", failing], workers=2, launcher=launcher, timeout=60, stderr=subprocess.DEVNULL
    )
    assert done.returncode != 0


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_leaving_a_launch_ends_every_process_of_it(launcher: Launcher, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", NEVER_ENDS, str(tmp_path)]
    with started_workers(argv, workers=2, launcher=launcher, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        pids = wait_for_workers(tmp_path, workers=2)
    assert running(pids) == []


def test_a_timeout_ends_every_process_of_the_launch(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", NEVER_ENDS, str(tmp_path)]
    with pytest.raises(subprocess.TimeoutExpired):
        run_workers(argv, workers=2, timeout=6, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert len(pids_in(tmp_path)) == 4
    assert running(pids_in(tmp_path)) == []


def test_workers_that_ignore_the_request_to_end_are_forced(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + NEVER_ENDS]
    with started_workers([*argv, str(tmp_path)], workers=2, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        pids = wait_for_workers(tmp_path, workers=2)
    assert running(pids) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launching_python_ends_every_process_of_the_launch(number: int, tmp_path: Path) -> None:
    code = (
        "import sys; from hvd_compress.launch import run_workers; "
        f"run_workers([sys.executable, '-c', {NEVER_ENDS!r}, {str(tmp_path)!r}], workers=2)"
    )
    # Python takes SIGINT as an interrupt only where it is not ignored from the start, as below a shell's '&'.
    launching = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + code],
        stderr=subprocess.DEVNULL,
    )
    pids = wait_for_workers(tmp_path, workers=2)
    launching.send_signal(number)
    assert launching.wait(timeout=30) != 0
    assert running(pids) == []


def test_processes_that_outlive_their_rank_are_ended_too(tmp_path: Path) -> None:
    ends_at_once = NEVER_ENDS.replace("time.sleep(600)\n", "\n").rpartition("\n\n")[0]
    done = run_workers([sys.executable, "-c", ends_at_once, str(tmp_path)], workers=2, timeout=60)
    assert done.returncode == 0
    assert len(pids_in(tmp_path)) == 4
    assert running(pids_in(tmp_path)) == []


def test_mpi_starts_where_there_is_no_ssh_client(programs_without_ssh: str) -> None:
    command = worker_command([sys.executable, "-c", PRINT_RANK], workers=2, env={"PATH": programs_without_ssh})
    assert command.env["OMPI_MCA_plm"] == "isolated"
    assert subprocess.run(command.argv, env=command.env, timeout=60, capture_output=True).returncode == 0


def test_a_bare_mpirun_starts_where_there_is_no_ssh_client(programs_without_ssh: str) -> None:
    mpirun = [f"{sys.prefix}/bin/mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    env = {"PATH": programs_without_ssh, "HOME": os.environ["HOME"]}
    done = subprocess.run(
        [*mpirun, sys.executable, "-c", PRINT_RANK], env=env, timeout=60, capture_output=True, text=True
    )
    assert sorted(done.stdout.split()) == ["0", "1", "rank", "rank"], done.stderr


def test_mpirun_to_another_host_says_that_it_needs_an_ssh_client(programs_without_ssh: str) -> None:
    mpirun = [f"{sys.prefix}/bin/mpirun", "--allow-run-as-root", "-np", "1", "-H", "another-host.invalid", "true"]
    done = subprocess.run(mpirun, env={"PATH": programs_without_ssh}, timeout=60, capture_output=True, text=True)
    assert done.returncode != 0
    assert "mpirun needs an ssh client to reach other hosts: install one" in done.stderr


def test_a_plain_python_is_a_single_rank() -> None:
    code = "import horovod.torch as hvd; hvd.init(); print(hvd.size(), hvd.mpi_enabled())"
    env = {name: value for name, value in os.environ.items() if name != "OPAL_PREFIX"}
    done = subprocess.run([sys.executable, "-c", code], env=env, timeout=60, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True"], done.stderr


def test_a_users_own_opal_prefix_is_kept() -> None:
    env = {**os.environ, "OPAL_PREFIX": "/of/the/user"}
    code = "import os; print(os.environ['OPAL_PREFIX'])"
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "/of/the/user\n"


def test_gloo_is_refused_where_the_host_name_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "no-such-host.invalid")
    with pytest.raises(
        LaunchError, match=r"'no-such-host.invalid' does not: add the line .* to /etc/hosts, or launch with"
    ):
        worker_command(["true"], workers=2, launcher="gloo")


def test_mpi_does_not_need_the_host_name_to_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "no-such-host.invalid")
    assert worker_command(["true"], workers=2).argv[-1] == "true"


def test_without_horovod_the_error_names_the_set_up() -> None:
    code = (
        "import sys; sys.modules['horovod'] = None\n"
        "from hvd_compress import launch\n"
        "try: launch.worker_command(['true'], workers=2)\n"
        "except launch.LaunchError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("run bash scripts/setup.sh, which builds it."), done.stderr


@pytest.mark.parametrize(("workers", "launcher"), [(0, "mpi"), (-1, "mpi"), (2, "ssh")])
def test_wrong_arguments_are_refused(workers: int, launcher: str) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        worker_command(["true"], workers=workers, launcher=launcher)  # type: ignore[arg-type]


def test_a_launch_takes_the_programs_of_its_own_environment() -> None:
    command = worker_command(["true"], workers=2, env={"PATH": "/usr/bin"})
    assert command.argv[0] == f"{sys.prefix}/bin/mpirun"
    assert command.env["PATH"] == f"{sys.prefix}/bin:/usr/bin"
