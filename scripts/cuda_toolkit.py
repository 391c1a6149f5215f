"""The CUDA toolkit and NCCL of NVIDIA's Python packages, laid out for Horovod's build."""

from __future__ import annotations

import os
import re
import sysconfig
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-nccl-cu13")


def versions() -> str:
    """Return which packages the build takes, in words."""
    return " ".join(f"{name} {version(name)}" for name in PACKAGES)


def folder(name: str) -> Path:
    """Return the folder of ``cu13``, the toolkit, or ``nccl``."""
    return Path(sysconfig.get_path("purelib")) / "nvidia" / name


def link_libraries(into: Path) -> Path:
    """Make a folder with all libraries under the names that linkers look for, which the packages lack."""
    into.mkdir()
    for library in [*folder("cu13").glob("lib/lib*"), *folder("nccl").glob("lib/lib*")]:
        (into / re.sub(r"\.so\.[\d.]+$", ".so", library.name)).symlink_to(library)
    return into


def environment(libraries: Path, path: str) -> dict[str, str]:
    """Return the variables of a build that reduces CUDA tensors with NCCL; `path` is the search path for programs."""
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(folder("cu13")),
        "HOROVOD_NCCL_HOME": str(folder("nccl")),
        "HOROVOD_NCCL_LINK": "SHARED",
        # Where PyTorch looks.
        "CUDA_HOME": str(folder("cu13")),
        # Where CMake looks, and where nvcc's linker does.
        "CMAKE_LIBRARY_PATH": str(libraries),
        "LIBRARY_PATH": str(libraries),
        # Horovod asks the first nvcc that it finds for the architectures to build for.
        "PATH": os.pathsep.join([str(folder("cu13") / "bin"), path]),
    }
