"""What the set-up needs of a machine, checked before it would fail later and less clearly."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from steps import AGAIN, Problem

CUDA_COMES = """\
pip is about to fetch PyTorch's CUDA build, about 3 GB; Horovod is built for the CPU and needs none of that. To offer
pip a CPU build instead, stop here (Ctrl-C) and start again with PIP_FIND_LINKS=FOLDER, a folder that holds a CPU wheel
of the same torch version, or with PIP_EXTRA_INDEX_URL, an index of such wheels."""


def wants_gpu() -> bool:
    """Say whether Horovod is to be built for GPUs, as Horovod's own variable has it; Problem for other GPU builds."""
    value = os.environ.get("HOROVOD_GPU_OPERATIONS") or None
    if value not in (None, "NCCL"):
        raise Problem(f"HOROVOD_GPU_OPERATIONS must be NCCL, or not be set for a build for the CPU, got {value!r}.")
    return value == "NCCL"


def check_machine(root: Path) -> None:
    """Raise Problem for what would only fail later, and less clearly."""
    compiler = shlex.split(os.environ.get("CXX") or "c++")[0]
    if shutil.which(compiler) is None:
        raise Problem(
            f"There is no C++ compiler (looked for {compiler}), which Horovod's build needs: install one (Debian, "
            f"Ubuntu: apt install g++) or name it in the variable CXX, and {AGAIN}."
        )
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise Problem(
            f"{sys.executable} has no complete venv module: install it (Debian, Ubuntu: apt install python3-venv), "
            f"and {AGAIN}."
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise Problem(
            f"{sys.executable} lacks its C headers ({header}), which Horovod's build needs: install them (Debian, "
            f"Ubuntu: apt install python3-dev), and {AGAIN}."
        )
    if any(character.isspace() for character in str(root)):
        raise Problem(f"Open MPI cannot take a path with a space in it: move {root}, and {AGAIN}.")


def check_disk(root: Path, gigabytes: int) -> None:
    """Raise Problem if less than that is free where .venv goes."""
    free = shutil.disk_usage(root).free / 1e9
    if free < gigabytes:
        raise Problem(
            f"The disk has too little room: {gigabytes} GB are needed in {root} and {free:.1f} GB are free: make room, "
            f"and {AGAIN}."
        )


def fetches_cuda(report: Path) -> bool:
    """Say whether the PyTorch that pip reports it would install brings NVIDIA's packages along."""
    installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    needs = [need for package in installs for need in package["metadata"].get("requires_dist", [])]
    return any(need.startswith(("nvidia-", "cuda-")) and "extra ==" not in need for need in needs)
