"""Correct Horovod's unpacked source for a build for the CPU or for GPUs.

Horovod 0.28.1 is older than the compilers, PyTorch and TensorFlow that it is built for here. Each correction replaces
one passage that must be found exactly once; a source that differs is refused.
"""

from __future__ import annotations

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
        "project(horovod CXX)\n",
        "project(horovod CXX)\nset(CMAKE_BUILD_WITH_INSTALL_RPATH TRUE)\n"
        'set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../..;$ORIGIN/../../torch/lib;$ORIGIN/../../tensorflow;'
        '$ORIGIN/../../nvidia/nccl/lib")\n',
        "a cached wheel finds the libraries of the environment that it is installed in, not of the one it was built in",
    ),
)

CPU_CORRECTIONS = (
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
)

GPU_CORRECTIONS = (
    Correction(
        "horovod/tensorflow/mpi_ops.cc",
        "GpuStreamHandle AsGpuStreamValue(Stream* stream);\n} // namespace stream_executor\n} // namespace gpu\n"
        "#if TENSORFLOW_VERSION >= 2011000000\n"
        '#include "tensorflow/compiler/xla/stream_executor/stream.h"\n',
        "} // namespace stream_executor\n} // namespace gpu\n"
        "#if TENSORFLOW_VERSION >= 2011000000\n"
        '#include "tensorflow/compiler/xla/stream_executor/stream.h"\n'
        "namespace stream_executor {\nnamespace gpu {\n"
        "inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {\n"
        "  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);\n"
        "}\n} // namespace gpu\n} // namespace stream_executor\n",
        "TensorFlow no longer has this function, but the stream itself says the same",
    ),
)


def correct(source: Path, gpu: bool) -> None:
    """Apply every correction to the Horovod source in `source`; SystemExit, with a sentence, if one does not fit."""
    for correction in CORRECTIONS + (GPU_CORRECTIONS if gpu else CPU_CORRECTIONS):
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
