"""Find or build the wheel of Horovod for the environment of the running Python; the last line printed is its path.

With HOROVOD_GPU_OPERATIONS=NCCL it is one for NVIDIA GPUs, built with the CUDA toolkit of the environment's packages.

The wheel is kept in a folder whose name is a digest of everything that the build depends on; what that is lies beside
the wheel in words. Called by setup.sh.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import cuda_toolkit
from checks import wants_gpu
from horovod_corrections import correct

HERE = Path(__file__).parent
RECIPE = ("cuda_toolkit", "horovod_corrections", "horovod_wheel")
# What the code is compiled with where a processor has them (Horovod's own choice).
PROCESSOR_FLAGS = {"avx", "f16c", "fma"}
# The worst of Horovod's translation units needs this much memory to compile.
JOB_BYTES = 3 * 2**30
SECONDS_OF_A_DAY = 86_400


def cache_folder() -> Path:
    """Return where this package keeps what is costly to make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_compress"


def horovod_version() -> str:
    """Return the version that the list of pinned packages asks for."""
    lines = (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("horovod==") for line in lines if line.startswith("horovod=="))


def compiler() -> list[str]:
    """Return the command of the C++ compiler that CMake will take."""
    return shlex.split(os.environ.get("CXX") or "c++")


def built_for(gpu: bool) -> dict[str, str]:
    """Return everything that the wheel depends on, in words."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        raise SystemExit("PyTorch is not installed in this environment, and Horovod is built for it: run setup.sh.")
    # The distribution's version lacks the local part (+cpu, +cu130) that tells one build from another.
    about_torch = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
    if gpu and about_torch["cuda"] is None:
        raise SystemExit(
            f"PyTorch {about_torch['__version__']} of this environment was built without CUDA, which "
            "HOROVOD_GPU_OPERATIONS=NCCL needs: remove .venv, have pip find a build with CUDA (PIP_FIND_LINKS and "
            "PIP_EXTRA_INDEX_URL may lead it to others), and run setup.sh again."
        )
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    compiler_version = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    recipe = b"".join((HERE / f"{name}.py").read_bytes() for name in RECIPE)
    return {
        "horovod": horovod_version(),
        "torch": about_torch["__version__"],
        "tensorflow": version("tensorflow"),
        "openmpi": version("openmpi"),
        "gpu": cuda_toolkit.versions() if gpu else "none",
        "python": f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}",
        "compiler": compiler_version.splitlines()[0],
        "libc": " ".join(platform.libc_ver()),
        "machine": " ".join([platform.machine(), *sorted(PROCESSOR_FLAGS.intersection(cpu))]),
        "tools": " ".join(f"{name} {version(name)}" for name in ("cmake", "ninja", "setuptools")),
        "recipe": hashlib.sha256(recipe).hexdigest(),
    }


def build_environment(cuda_libraries: Path | None = None) -> dict[str, str]:
    """Return the variables for the build: this environment's tools and MPI first, no setting inherited.

    It is for the CPU alone unless there is a folder where the linker finds CUDA's libraries.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "CCL_", "CUDA", "CMAKE_"))}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    jobs = max(1, min(len(os.sched_getaffinity(0)), memory // JOB_BYTES))
    path = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]])
    common = {
        "PATH": path,
        "MPI_HOME": sys.prefix,
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
        # gcc 13 and newer no longer pull these headers in by the way.
        "CXXFLAGS": "-include cstdint -include stdexcept -include string",
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        # Horovod passes make's own -j8 unless this is set; Ninja ignores it.
        "MAKEFLAGS": f"-j{jobs}",
    }
    return inherited | common | (cuda_toolkit.environment(cuda_libraries, path) if cuda_libraries else {})


def fetch_source(folder: Path) -> Path:
    """Download and unpack Horovod's source into `folder`; return its top folder."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary=horovod"]
    subprocess.run([*pip, f"--dest={folder}", f"horovod=={horovod_version()}"], check=True)
    # Not tarfile: Debian 12's Python 3.11.2 has no extraction filter yet, which later ones insist on.
    subprocess.run(["tar", "xzf", str(next(folder.glob("horovod-*.tar.gz"))), "-C", str(folder)], check=True)
    return folder / f"horovod-{horovod_version()}"


def build(folder: Path, description: dict[str, str], gpu: bool) -> None:
    """Build the wheel beside `folder` and move all of it into place at the end."""
    for leftover in folder.parent.glob(".building-*"):
        # Of a build that was killed outright: half a gigabyte each.
        if time.time() - leftover.stat().st_mtime > SECONDS_OF_A_DAY:
            shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as name:
        source = fetch_source(Path(name))
        correct(source, gpu)
        done = Path(name) / "done"
        # Quiet, or else Horovod hands VERBOSE=1 to Ninja, which takes it for a target.
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "bdist_wheel", f"--dist-dir={done}"],
            cwd=source,
            env=build_environment(cuda_toolkit.link_libraries(Path(name) / "cuda") if gpu else None),
            check=True,
        )
        (done / "built-for.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        # Only someone who removed the wheel by hand leaves a folder without one; a rename cannot leave half a folder.
        shutil.rmtree(folder, ignore_errors=True)
        done.rename(folder)


def wheel_folder(description: dict[str, str]) -> Path:
    """Return the folder of the wheel that was built for what `description` says."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"horovod-{description['horovod']}-{digest}"


def main() -> None:
    """Print the path of the wheel, which is built first unless it is there."""
    gpu = wants_gpu()
    description = built_for(gpu)
    folder = wheel_folder(description)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("*.whl")):
        build(folder, description, gpu)
    print(next(folder.glob("*.whl")))


if __name__ == "__main__":
    main()
