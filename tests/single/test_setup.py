"""The set-up says in one sentence what a machine lacks, and trusts nothing that is half done."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
BASE_PYTHON: str = sys._base_executable  # type: ignore[attr-defined]
# Where nothing listens.
CLOSED = "http://127.0.0.1:9/simple"

sys.path.append(str(ROOT / "scripts"))

import cuda_toolkit  # noqa: E402
import environment  # noqa: E402
import horovod_wheel  # noqa: E402
from checks import check_disk, fetches_cuda, wants_gpu  # noqa: E402
from horovod_corrections import CORRECTIONS, CPU_CORRECTIONS, GPU_CORRECTIONS, Correction, correct  # noqa: E402
from steps import Problem, Steps  # noqa: E402


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the set-up needs of this checkout, without .venv."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.py", folder)
    return folder


def surroundings() -> dict[str, str]:
    """Return an environment with Python named and no package index within reach."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    unreachable = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": CLOSED, "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    return {**keep, "PYTHON": BASE_PYTHON, **unreachable}


def set_up(checkout: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run setup.sh in these surroundings, which `env` changes."""
    return subprocess.run(
        ["bash", str(checkout / "scripts" / "setup.sh")],
        env={**surroundings(), **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a failed set-up ends with."""
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("setup: ")]
    assert done.stderr.splitlines()[-1] == line
    return line


def folder_of_programs(folder: Path, *without: str) -> str:
    """Make a folder with every system program except some; return it as a search path."""
    folder.mkdir()
    for program in [*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()]:
        link = folder / program.name
        if program.name not in without and not link.is_symlink():
            link.symlink_to(program)
    return str(folder)


def site(folder: Path, code: str) -> str:
    """Write code that a Python with the returned PYTHONPATH runs when it starts."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return str(folder)


def test_a_python_that_is_too_old_is_named(checkout: Path, tmp_path: Path) -> None:
    old = tmp_path / "python2.7"
    old.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo Python 2.7.18; else exit 1; fi\n')
    old.chmod(0o755)
    said = sentence(set_up(checkout, PYTHON=str(old)))
    assert f"Python 3.11, 3.12 or 3.13 is needed ({old}: Python 2.7.18): install one" in said
    assert not (checkout / ".venv").exists()


def test_a_machine_without_python_is_told_what_was_looked_for(checkout: Path, tmp_path: Path) -> None:
    pythons = [path.name for path in Path("/usr/bin").glob("python*")]
    path = folder_of_programs(tmp_path / "programs", *pythons)
    said = sentence(set_up(checkout, PYTHON="", PATH=path))
    assert "python3: not there, python3.13: not there, python3.12: not there, python3.11: not there" in said


def test_a_missing_compiler_is_named_before_anything_is_made(checkout: Path, tmp_path: Path) -> None:
    said = sentence(set_up(checkout, PATH=folder_of_programs(tmp_path / "programs", "c++", "g++")))
    assert "There is no C++ compiler (looked for c++)" in said
    assert "apt install g++" in said
    assert not (checkout / ".venv").exists()


def test_a_compiler_that_was_named_and_is_missing_is_told(checkout: Path) -> None:
    assert "(looked for g++-99)" in sentence(set_up(checkout, CXX="g++-99 -O2"))


def test_a_python_without_its_venv_module_is_told(checkout: Path, tmp_path: Path) -> None:
    without = site(tmp_path / "site", "import sys; sys.modules['ensurepip'] = None")
    assert "apt install python3-venv" in sentence(set_up(checkout, PYTHONPATH=without))
    assert not (checkout / ".venv").exists()


def test_a_python_without_its_headers_is_told(checkout: Path, tmp_path: Path) -> None:
    without = site(tmp_path / "site", "import sysconfig; sysconfig.get_config_vars()['installed_base'] = '/nowhere'")
    said = sentence(set_up(checkout, PYTHONPATH=without))
    assert re.search(r"lacks its C headers \(/nowhere/.*Python.h\).*apt install python3-dev", said)
    assert not (checkout / ".venv").exists()


def test_a_path_with_a_space_is_refused(checkout: Path) -> None:
    moved = checkout.rename(checkout.with_name("check out"))
    assert f"Open MPI cannot take a path with a space in it: move {moved}" in sentence(set_up(moved))


def test_without_a_network_the_package_index_is_named_and_nothing_half_done_is_trusted(checkout: Path) -> None:
    half_installed = checkout / ".venv" / "lib" / "half-installed"
    half_installed.parent.mkdir(parents=True)
    half_installed.write_text("")
    state = checkout / ".venv" / "setup-state"
    state.write_text("incomplete")
    assert "The package index did not answer" in sentence(set_up(checkout))
    assert not half_installed.exists()
    assert state.read_text() == "incomplete"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_set_up_that_is_interrupted_ends_what_it_started_and_is_not_trusted(checkout: Path, number: int) -> None:
    script = ["bash", str(checkout / "scripts" / "setup.sh")]
    venv = checkout / ".venv"
    with subprocess.Popen(script, env=surroundings(), stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not processes_of(venv) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert said == "\nsetup: interrupted; to go on, run bash scripts/setup.sh again.\n"
    assert process.returncode == 130
    assert processes_of(venv) == []
    assert (venv / "setup-state").read_text() == "incomplete"


def processes_of(venv: Path) -> list[str]:
    """Return the command lines that name the folder, as those of the first step do."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_text().replace("\0", " "))
    return [line for line in lines if f"{venv} " in line or f"{venv}/" in line]


def test_a_folder_that_someone_else_made_is_not_touched(checkout: Path) -> None:
    foreign = checkout / ".venv" / "pyvenv.cfg"
    foreign.parent.mkdir()
    foreign.write_text("mine")
    assert f"{foreign.parent} was not made by this script: move it away" in sentence(set_up(checkout))
    assert foreign.read_text() == "mine"


def test_a_complete_environment_of_another_recipe_is_updated_in_place(checkout: Path) -> None:
    venv = checkout / ".venv"
    subprocess.run([BASE_PYTHON, "-m", "venv", "--without-pip", str(venv)], check=True)
    (venv / "setup-state").write_text("the digest of an older recipe")
    kept = venv / "lib" / "installed"
    kept.write_text("")
    assert set_up(checkout).returncode == 1
    assert kept.exists()
    assert (venv / "setup-state").read_text() == "incomplete"


def test_a_second_set_up_finds_all_in_place_within_ten_seconds() -> None:
    # A stale environment would be rebuilt below the tests that are running in it.
    assert environment.STATE.read_text() == environment.digest(wants_gpu()), "run bash scripts/setup.sh first"
    done = subprocess.run(["bash", "scripts/setup.sh"], cwd=ROOT, capture_output=True, text=True, timeout=10)
    assert done.returncode == 0
    assert re.fullmatch(r"Ready: Python 3\.\d+\.\d+, torch .*, horovod 0\.28\.1, .*\n", done.stdout)


def test_dependencies_alone_or_a_build_for_something_else_are_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "STATE", tmp_path / "setup-state")
    monkeypatch.setattr(environment, "PYTHON", "true")
    for state, gpu, complete in [
        ("dependencies", False, False),
        (environment.digest(gpu=True), False, False),
        (environment.digest(gpu=True), True, True),
        (environment.digest(gpu=False), False, True),
    ]:
        environment.STATE.write_text(state)
        assert environment.is_complete(gpu) is complete


def test_wrong_usage_ends_with_status_2_and_help_with_0(checkout: Path) -> None:
    script = str(checkout / "scripts" / "setup.sh")
    wrong = subprocess.run(["bash", script, "--fast"], capture_output=True, text=True, timeout=30)
    assert wrong.returncode == 2
    assert "usage: setup.sh" in wrong.stderr
    asked = subprocess.run(["bash", script, "--help"], capture_output=True, text=True, timeout=30)
    assert asked.returncode == 0
    assert "PYTHON (the Python to make .venv with)" in asked.stdout


def test_a_disk_with_too_little_room_is_told_in_gigabytes(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"1000000000 GB are needed in .* GB are free: make room"):
        check_disk(tmp_path, 10**9)


def test_a_disk_that_runs_full_is_told(tmp_path: Path) -> None:
    steps = Steps(tmp_path / "log", total=1)
    with pytest.raises(Problem, match=r"The disk ran full \(Writing\): make room"):
        steps.run("Writing", "1 s", ["sh", "-c", "cat /etc/passwd > /dev/full"])


def test_a_failed_step_shows_its_last_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(tmp_path / "log", total=1)
    with pytest.raises(Problem, match=rf"Compiling failed: .* all of them in {tmp_path}/log"):
        steps.run("Compiling", "1 s", ["sh", "-c", "echo the reason; exit 3"])
    output = capsys.readouterr()
    assert output.out == "[1/1] Compiling (usually 1 s)\n"
    assert output.err == "the reason\n"


BUILDS = {False: CORRECTIONS + CPU_CORRECTIONS, True: CORRECTIONS + GPU_CORRECTIONS}


@pytest.mark.parametrize(("gpu", "correction"), [(gpu, one) for gpu, all_ in BUILDS.items() for one in all_])
@pytest.mark.parametrize("times", [0, 2])
def test_a_source_that_a_correction_does_not_fit_is_refused(
    tmp_path: Path, gpu: bool, correction: Correction, times: int
) -> None:
    write_source(tmp_path, gpu, {correction: times})
    with pytest.raises(SystemExit) as error:
        correct(tmp_path, gpu)
    expected = f"{tmp_path / correction.file} should hold once, and holds {times} times, the line: "
    assert expected + correction.old.strip() in str(error.value)


@pytest.mark.parametrize("gpu", BUILDS)
def test_the_corrections_change_their_lines_only(tmp_path: Path, gpu: bool) -> None:
    write_source(tmp_path, gpu, {})
    correct(tmp_path, gpu)
    for file in {correction.file for correction in BUILDS[gpu]}:
        mine = [correction for correction in BUILDS[gpu] if correction.file == file]
        assert (tmp_path / file).read_text() == "".join(f"before\n{correction.new}after\n" for correction in mine)


def write_source(folder: Path, gpu: bool, times: dict[Correction, int]) -> None:
    """Write the passages that the corrections look for, each once or as often as `times` says."""
    for correction in BUILDS[gpu]:
        path = folder / correction.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"before\n{correction.old * times.get(correction, 1)}after\n")


def test_pytorchs_cuda_build_is_recognised_by_what_it_needs(tmp_path: Path) -> None:
    needs = {
        "cpu": ["filelock", "sympy>=1.13.3", 'opt-einsum>=3.3; extra == "opt-einsum"'],
        "cuda": ["filelock", 'nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"'],
    }
    for name, requires_dist in needs.items():
        (tmp_path / name).write_text(json.dumps({"install": [{"metadata": {"requires_dist": requires_dist}}]}))
    assert [fetches_cuda(tmp_path / name) for name in needs] == [False, True]


def test_the_wheel_in_the_cache_is_for_everything_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    description = horovod_wheel.built_for(gpu=False)
    assert {"horovod", "torch", "tensorflow", "openmpi", "gpu", "python", "compiler", "recipe"} <= set(description)
    folders = {horovod_wheel.wheel_folder({**description, name: "other"}) for name in description}
    assert len(folders | {horovod_wheel.wheel_folder(description)}) == len(description) + 1
    assert all(str(folder).startswith("/cache/hvd_compress/horovod-") for folder in folders)


def test_a_cached_wheel_is_taken_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wheel = horovod_wheel.wheel_folder(horovod_wheel.built_for(gpu=False)) / "horovod.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_text("")
    script = [sys.executable, str(ROOT / "scripts" / "horovod_wheel.py")]
    env = {**os.environ, "PIP_INDEX_URL": CLOSED, "HOROVOD_GPU_OPERATIONS": ""}
    assert subprocess.check_output(script, env=env, text=True, timeout=30) == f"{wheel}\n"


def test_a_build_that_fails_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    env |= {"PIP_INDEX_URL": CLOSED, "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    script = [sys.executable, str(ROOT / "scripts" / "horovod_wheel.py")]
    assert subprocess.run(script, env=env, capture_output=True, timeout=60).returncode == 1
    assert list((tmp_path / "hvd_compress").iterdir()) == []


def test_other_builds_for_gpus_than_with_nccl_are_refused(checkout: Path) -> None:
    said = sentence(set_up(checkout, HOROVOD_GPU_OPERATIONS="MPI"))
    assert said == "setup: HOROVOD_GPU_OPERATIONS must be NCCL, or not be set for a build for the CPU, got 'MPI'."
    assert not (checkout / ".venv").exists()


def test_a_build_for_gpus_needs_a_pytorch_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runpy.run_path", lambda path: {"__version__": "2.13.0+cpu", "cuda": None})
    with pytest.raises(SystemExit, match=r"PyTorch 2\.13\.0\+cpu of this environment was built without CUDA"):
        horovod_wheel.built_for(gpu=True)
    assert horovod_wheel.built_for(gpu=False)["torch"] == "2.13.0+cpu"


def test_a_build_for_gpus_finds_the_toolkit_of_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = {"cu13": ["libcudart.so.13", "libcudart_static.a", "libnvrtc.alt.so.13"], "nccl": ["libnccl.so.2"]}
    for name, files in libraries.items():
        (tmp_path / "nvidia" / name / "lib").mkdir(parents=True)
        for file in files:
            (tmp_path / "nvidia" / name / "lib" / file).write_text(file)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    links = cuda_toolkit.link_libraries(tmp_path / "links")
    names = {path.name: path.read_text() for path in links.iterdir()}
    assert names == {
        "libcudart.so": "libcudart.so.13",
        "libcudart_static.a": "libcudart_static.a",
        "libnvrtc.alt.so": "libnvrtc.alt.so.13",
        "libnccl.so": "libnccl.so.2",
    }
    built = horovod_wheel.build_environment(links)
    assert built["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert built["PATH"].split(os.pathsep)[:2] == [str(tmp_path / "nvidia/cu13/bin"), str(Path(sys.prefix) / "bin")]


def test_horovod_is_built_for_the_cpu_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_GPU_OPERATIONS", "HOROVOD_CUDA_HOME", "CUDACXX", "HOROVOD_WITHOUT_MPI"):
        monkeypatch.setenv(name, "1")
    built = horovod_wheel.build_environment()
    settings = {name for name in built if name.startswith(("HOROVOD_", "CUDA"))}
    assert settings == {
        "HOROVOD_WITH_PYTORCH",
        "HOROVOD_WITH_TENSORFLOW",
        "HOROVOD_WITHOUT_MXNET",
        "HOROVOD_WITH_MPI",
        "HOROVOD_WITH_GLOO",
        "HOROVOD_WITHOUT_NVTX",
    }


def test_only_numpy_is_a_hard_dependency_and_no_extra_lists_horovod() -> None:
    needs = [Requirement(need) for need in requires("hvd_compress") or []]
    assert [need.name for need in needs if need.marker is None] == ["numpy"]
    assert "horovod" not in {need.name for need in needs}
    extras = {match[1] for need in needs if (match := re.search(r'extra == "(\w+)"', str(need.marker)))}
    assert extras == {"torch", "tensorflow", "mpi", "bench", "cli", "study", "test"}


def test_without_a_compiler_it_installs_and_says_what_is_missing(tmp_path: Path) -> None:
    """F114."""
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(
        ROOT / "hvd_compress", source / "hvd_compress", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    env = {**surroundings(), "CC": "no-compiler", "CXX": "no-compiler"}
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*pip, str(source)], env=env, check=True, timeout=120)
    assert not list(site.rglob("*.so"))
    code = "import hvd_compress as h; print(h.__file__); from hvd_compress.cli.commands import main; main(['info'])"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**surroundings(), "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout.startswith(str(site)), found.stderr
    assert re.search(r"native kernels +not built", found.stdout)
    assert re.search(r"C\+\+ compiler", found.stdout)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("missing", ["horovod", "horovod.{}.mpi_ops"])
def test_a_horovod_that_is_missing_or_half_built_is_one_sentence_with_the_recipe(framework: str, missing: str) -> None:
    """F114."""
    code = f"import sys; sys.modules[{missing.format(framework)!r}] = None; import hvd_compress.{framework}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: hvd_compress.{framework} needs Horovod built for {framework} (")
    assert last.endswith("pip cannot build it: run scripts/setup.sh of hvd_compress")


@pytest.mark.parametrize("need", requires("hvd_compress") or [], ids=lambda need: need.partition(";")[0])
def test_what_the_package_asks_for_is_pinned_to_a_version_that_satisfies_it(need: str) -> None:
    pins = [pin.partition(";")[0].split("==") for pin in environment.pins()]
    pinned = {canonicalize_name(name): version for name, version in pins}
    requirement = Requirement(need)
    assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
