"""Correct the build files of Horovod's unpacked source: ``python horovod_corrections.py SOURCE``.

Horovod 0.28.1 is older than the compilers, PyTorch and TensorFlow that it is built for here. Each correction replaces
one passage that must be found exactly once; a source that differs is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple


class Correction(NamedTuple):
    """One passage of one file, what replaces it, and why."""

    file: str
    old: str
    new: str
    why: str


CORRECTIONS = (
    Correction(
        "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)\n",
        "set(CMAKE_CXX_STANDARD 17)\n",
        "PyTorch's and TensorFlow's headers are C++17",
    ),
    Correction(
        "horovod/torch/CMakeLists.txt",
        "    set(CMAKE_CXX_STANDARD 14)\n",
        "    set(CMAKE_CXX_STANDARD 17)\n",
        "the torch library sets its own standard",
    ),
    Correction(
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
        "the optional XLA operations need a header that TensorFlow no longer ships",
    ),
    Correction(
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        "  const size_type count_;\n",
        "  size_type count_;\n",
        "gcc 14 rejects the assignment to a const member in span's own operator=",
    ),
    Correction(
        "CMakeLists.txt",
        "include(CheckLanguage)\n",
        "set(CMAKE_CUDA_COMPILER NOTFOUND)\nset(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)\ninclude(CheckLanguage)\n",
        "a CUDA toolkit on the machine must not turn this into a GPU build",
    ),
    Correction(
        "cmake/Modules/FindPytorch.cmake",
        '-c "import torch; from torch.utils.cpp_extension import CUDA_HOME; '
        'print(True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False)"\n',
        '-c "print(False)"\n',
        "nor must PyTorch's CUDA build",
    ),
    Correction(
        "CMakeLists.txt",
        "project(horovod CXX)\n",
        "project(horovod CXX)\nset(CMAKE_BUILD_WITH_INSTALL_RPATH TRUE)\n"
        'set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../..;$ORIGIN/../../torch/lib;$ORIGIN/../../tensorflow")\n',
        "a cached wheel finds the libraries of the environment that it is installed in, not of the one it was built in",
    ),
)


def correct(source: Path) -> None:
    """Apply every correction to the Horovod source in `source`; SystemExit, with a sentence, if one does not fit."""
    for correction in CORRECTIONS:
        path = source / correction.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = text.count(correction.old)
        if found != 1:
            raise SystemExit(
                f"This Horovod source is not the one that its corrections were written for: {path} should hold once, "
                f"and holds {found} times, the line: {correction.old.strip()}"
            )
        path.write_text(text.replace(correction.old, correction.new), encoding="utf-8")
        print(f"corrected {correction.file}: {correction.why}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        raise SystemExit(2)
    correct(Path(sys.argv[1]))
