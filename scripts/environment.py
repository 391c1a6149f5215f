"""Make .venv: the pinned packages, Horovod for the CPU with MPI and Gloo, and hvd_compress itself in editable mode.

With HOROVOD_GPU_OPERATIONS=NCCL in the environment Horovod is also built for NVIDIA GPUs and reduces CUDA tensors with
NCCL. The CUDA toolkit comes from PyPI; a GPU or its driver is not needed until training.

About 10 minutes the first time, seconds when all is there. Needs Python 3.11 to 3.13 with its venv module and C
headers, a C++ compiler and a network (Debian, Ubuntu: apt install python3-venv python3-dev g++).

Variables: PYTHON (the Python to make .venv with), CXX (the compiler), XDG_CACHE_HOME (where Horovod's wheel is kept,
else ~/.cache), and pip's own, such as PIP_INDEX_URL and PIP_FIND_LINKS.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from checks import CUDA_COMES, check_disk, check_machine, fetches_cuda, wants_gpu
from horovod_wheel import RECIPE
from steps import AGAIN, Problem, Steps, in_words

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# "incomplete" while this script works on .venv, a digest of what it was made from once all is done, and "dependencies"
# if all but hvd_compress is.
STATE = VENV / "setup-state"
PIP = [str(PYTHON), "-m", "pip", "--no-input", "--disable-pip-version-check"]
TOOLS = ("pip", "setuptools", "wheel", "packaging")
GIGABYTES, GIGABYTES_CUDA = 6, 16


def pins(gpu: bool = False) -> list[str]:
    """Return the pinned requirements."""
    files = ["requirements.txt", *(["requirements-gpu.txt"] if gpu else [])]
    lines = [line for file in files for line in (SCRIPTS / file).read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def digest(gpu: bool) -> str:
    """Return what .venv depends on in this checkout, as one word; a .venv cannot move, so its place is part of it."""
    scripts = [SCRIPTS / f"{name}.py" for name in ("environment", "openmpi", *RECIPE)]
    kernels = sorted((ROOT / "hvd_compress" / "native").glob("*.[chi]*"))
    files = [*scripts, ROOT / "setup.py", *kernels]
    facts = [str(ROOT), *pins(gpu)]
    return hashlib.sha256(b"\0".join([*map(str.encode, facts), *(file.read_bytes() for file in files)])).hexdigest()


def is_complete(gpu: bool) -> bool:
    """Say whether .venv was finished from this very recipe and its Python still starts."""
    check = "import importlib.metadata as m; [m.version(name) for name in ('torch', 'horovod', 'hvd_compress')]"
    return (
        STATE.is_file()
        and STATE.read_text(encoding="utf-8") == digest(gpu)
        and subprocess.run([PYTHON, "-c", check], capture_output=True).returncode == 0
    )


def begin() -> None:
    """Mark .venv as incomplete; one that an earlier run left so is made anew, for nobody knows what it lacks."""
    VENV.mkdir(exist_ok=True)
    inside = list(VENV.iterdir())
    if inside and STATE not in inside:
        raise Problem(f"{VENV} was not made by this script: move it away, and {AGAIN}.")
    if STATE in inside and STATE.read_text(encoding="utf-8") == "incomplete":
        for path in set(inside) - {STATE}:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if not PYTHON.exists():
        check_disk(ROOT, GIGABYTES)
    STATE.write_text("incomplete", encoding="utf-8")
    (VENV / "setup.log").unlink(missing_ok=True)


def make(gpu: bool, dependencies_only: bool) -> None:
    """Make or update .venv step by step."""
    begin()
    steps = Steps(VENV / "setup.log", total=4 if dependencies_only else 5)
    report = VENV / "torch.json"
    by_name = {pin.partition("==")[0]: pin for pin in pins(gpu)}
    # pip unpacks several GB: on the disk of .venv, for a machine's /tmp may be small or in memory.
    temporary = VENV / "tmp"
    temporary.mkdir(exist_ok=True)
    env = {"TMPDIR": os.environ.get("TMPDIR", str(temporary))}
    steps.run(
        "Making .venv and looking what pip will fetch",
        "10 s",
        *([] if PYTHON.exists() else [[sys.executable, "-m", "venv", str(VENV)]]),
        [*PIP, "install", *(by_name[name] for name in TOOLS)],
        [*PIP, "install", "--dry-run", "--no-deps", "--quiet", f"--report={report}", by_name["torch"]],
        env=env,
    )
    if fetches_cuda(report):
        if not gpu:
            print(CUDA_COMES, flush=True)
        check_disk(ROOT, GIGABYTES_CUDA)
    packages = [pin for name, pin in by_name.items() if name != "horovod"]
    steps.run(
        f"Installing {len(packages)} pinned packages, PyTorch and TensorFlow among them",
        "2 to 10 min",
        [*PIP, "install", "--no-build-isolation", *packages],
        env=env,
    )
    wheel = steps.run(
        f"Taking Horovod from the cache, or building it for {'NVIDIA GPUs' if gpu else 'the CPU'}",
        "1 s, or 5 to 10 min",
        [str(PYTHON), str(SCRIPTS / "horovod_wheel.py")],
        env=env,
    ).splitlines()[-1]
    package = [*PIP, "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    steps.run(
        "Installing Horovod" if dependencies_only else "Installing Horovod and hvd_compress",
        "40 s",
        [*PIP, "install", "--no-deps", "--force-reinstall", wheel],
        *([] if dependencies_only else [package]),
        [str(PYTHON), str(SCRIPTS / "openmpi.py"), str(VENV)],
        env=env,
    )
    shutil.rmtree(temporary, ignore_errors=True)
    if not dependencies_only:
        try_workers(steps)
    finished = STATE.with_suffix(".new")
    finished.write_text("dependencies" if dependencies_only else digest(gpu), encoding="utf-8")
    finished.replace(STATE)


def try_workers(steps: Steps) -> None:
    """Let two workers add up a tensor, and print what they noted."""
    tried = steps.run("Trying two workers, MPI and Gloo", "30 s", [str(PYTHON), str(SCRIPTS / "try_workers.py")])
    for note in (line for line in tried.splitlines() if line.startswith("note: ")):
        print(note)


def describe() -> str:
    """Return one line on what .venv holds."""
    names = ("torch", "tensorflow", "horovod", "openmpi")
    code = f"""
import platform, importlib.metadata as m
print("Python", platform.python_version(), *(f"{{name}} {{m.version(name)}}" for name in {names}), sep=", ")"""
    line = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return f"Ready: {line.replace(', ', ' ', 1)}. Use it with: source .venv/bin/activate"


def wait_for_others() -> None:
    """Hold, until this process ends, the right to work on .venv: two set-ups at a time would tear up each other's."""
    lock = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another set-up is at work on .venv: waiting for it.", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def main() -> int:
    """Make .venv unless it is complete; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="setup.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dependencies-only", action="store_true", help="stop before hvd_compress itself: a layer of an image"
    )
    arguments = parser.parse_args()
    # Both unwind, so that what this process started ends too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun = time.monotonic()
    try:
        gpu = wants_gpu()
        wait_for_others()
        if not is_complete(gpu):
            check_machine(ROOT)
            make(gpu, arguments.dependencies_only)
            print(f"Set up in {in_words(time.monotonic() - begun)}.")
        print(describe())
    except Problem as problem:
        print(f"setup: {problem}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"setup: The disk ran full: make room for {VENV}, and {AGAIN}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nsetup: interrupted; to go on, {AGAIN}.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
