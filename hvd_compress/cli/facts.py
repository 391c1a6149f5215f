"""What is installed here and whether it works."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from hvd_compress import __version__, ops
from hvd_compress.cli.probe import import_errors, library_flags
from hvd_compress.launch import Launcher, LaunchError, worker_command
from hvd_compress.native import kernels as native

__all__ = ["collect"]

PACKAGES = ("numpy", "torch", "triton", "tensorflow", "tf_keras", "horovod", "mpi4py", "openmpi", "rich")
LIBRARIES = {"torch": "mpi_lib_v2", "tensorflow": "mpi_lib", "mxnet": "mpi_lib"}
LAUNCHERS: tuple[Launcher, ...] = ("mpi", "gloo")


def collect() -> dict[str, Any]:
    """Return what is installed and whether it works, JSON-ready; None stands for what is not there.

    Nothing heavy is imported into this process: what must be tried is tried in others, at the same time.
    """
    backends = [name[1:] for _, name, _ in pkgutil.iter_modules(ops.__path__) if name.startswith("_")]
    skins = [name for name in (*LIBRARIES, "keras") if importlib.util.find_spec(f"hvd_compress.{name}")]
    with ThreadPoolExecutor() as pool:
        modules = {name: pool.submit(_modules, name, backends, skins) for name in {*backends, *skins}}
        libraries = {name: pool.submit(_library, name) for name in LIBRARIES}
        works = {module: error for future in modules.values() for module, error in future.result().items()}
        return {
            "hvd_compress": __version__,
            "python": {"version": platform.python_version(), "executable": sys.executable},
            "platform": platform.platform(),
            "packages": {name: _version(name) for name in PACKAGES},
            "compiler": _compiler(),
            "backends": {name: {"error": works[f"hvd_compress.ops._{name}"]} for name in backends},
            "skins": {name: {"error": works[f"hvd_compress.{name}"]} for name in skins},
            "native_kernels": native and {"instruction_set": native.isa(), "threads": native.threads()},
            "horovod": _horovod({name: future.result() for name, future in libraries.items()}),
            "launchers": {name: _launcher(name) for name in LAUNCHERS},
            "cores": {
                "machine": os.cpu_count(),
                "usable": len(os.sched_getaffinity(0)),
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            },
        }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _modules(framework: str, backends: Iterable[str], skins: Iterable[str]) -> dict[str, str | None]:
    """Whether the parts of this package that stand on one framework can be imported."""
    modules = [f"hvd_compress.ops._{framework}"] if framework in backends else []
    modules += [f"hvd_compress.{framework}"] if framework in skins else []
    if importlib.util.find_spec(framework) is None:
        return dict.fromkeys(modules, f"{framework} is not installed")
    return import_errors(modules)


def _package_folder() -> Path | None:
    spec = importlib.util.find_spec("horovod")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _library(framework: str) -> dict[str, Any] | None:
    """What Horovod's library for a framework was built with; None where there is no library."""
    folder = _package_folder()
    if folder is None:
        return None
    path = folder / framework / (LIBRARIES[framework] + EXTENSION_SUFFIXES[0])
    return library_flags(str(path), framework) if path.exists() else None


def _horovod(libraries: Mapping[str, Any]) -> dict[str, Any] | None:
    folder = _package_folder()
    if folder is None:
        return None
    # Horovod's build leaves the versions that it was built against.
    path = folder / "metadata.json"
    built_for = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        "version": _version("horovod"),
        "built_for": {name: built_for.get({"torch": "pytorch"}.get(name, name)) for name in LIBRARIES},
        "frameworks": dict(libraries),
    }


def _launcher(name: Launcher) -> dict[str, Any]:
    """What starts workers here, or why they cannot be started."""
    try:
        command = worker_command([], workers=1, launcher=name)
    except LaunchError as error:
        return {"path": None, "version": None, "error": str(error)}
    # horovodrun has Horovod's version and takes seconds to say so.
    version = _first_line([command.argv[0], "--version"], command.env) if name == "mpi" else _version("horovod")
    return {"path": command.argv[0], "version": version, "error": None}


def _compiler() -> dict[str, str] | None:
    """The C++ compiler that Horovod would be built with here."""
    command = os.environ.get("CXX") or "c++"
    version = _first_line([*shlex.split(command), "--version"])
    return None if version is None else {"command": command, "version": version}


def _first_line(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str | None:
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30.0, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)
