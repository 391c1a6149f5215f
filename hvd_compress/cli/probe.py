"""Try what may be broken, in a process of its own: importing modules, loading Horovod's library for a framework.

``python -m hvd_compress.cli.probe import MODULE...`` and ``... library PATH FRAMEWORK`` print one JSON object in their
last line. A library that was built for something else can end the process that loads it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["BUILD_FLAGS", "import_errors", "library_flags"]

BUILD_FLAGS = ("mpi", "gloo", "nccl", "ddl", "ccl", "cuda", "rocm")
SECONDS = 120.0


def import_errors(modules: Sequence[str]) -> dict[str, str | None]:
    """Import modules in a new process; for each, None if that works, otherwise what went wrong in one line."""
    answer = _ask("import", *modules)
    return {module: answer["error"] or answer["errors"][module] for module in modules}


def library_flags(path: str, framework: str) -> dict[str, Any]:
    """Ask Horovod's library for a framework what it was built with.

    That takes a second; ``horovodrun --check-build``, which imports the frameworks over and over, a minute.

    Parameters
    ----------
    path : str
        Of the shared library.
    framework : str
        Module whose libraries it needs.

    Returns
    -------
    dict
        ``error``, None or one line, and without an error a boolean for each of `BUILD_FLAGS`.
    """
    return _ask("library", path, framework)


def _ask(*question: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "hvd_compress.cli.probe", *question]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {SECONDS:.0f} s"}
    if done.returncode < 0:
        return {"error": f"loading it ends the process with {signal.Signals(-done.returncode).name}"}
    if done.returncode > 0:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    # Frameworks may print before it.
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _import_all(*modules: str) -> dict[str, Any]:
    errors: dict[str, str | None] = {}
    for module in modules:
        try:
            importlib.import_module(module)
            errors[module] = None
        except Exception as error:
            errors[module] = _one_line(error)
    return {"error": None, "errors": errors}


def _load(path: str, framework: str) -> dict[str, Any]:
    try:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            # Only a library that knows where the framework's own libraries are does without the framework.
            importlib.import_module(framework)
            library = ctypes.CDLL(path)
        return {"error": None, **{flag: bool(getattr(library, f"horovod_{flag}_built")()) for flag in BUILD_FLAGS}}
    except Exception as error:
        return {"error": _one_line(error)}


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    print(json.dumps(_import_all(*arguments) if kind == "import" else _load(*arguments)))
