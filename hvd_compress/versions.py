"""Which Horovod there is."""

from __future__ import annotations

import importlib
import warnings

__all__ = ["require_horovod"]


def require_horovod(framework: str) -> None:
    """Import Horovod for a framework.

    Raises
    ------
    ImportError
        If it is missing or was not built for that framework: one sentence that says what to do.
    """
    try:
        horovod = importlib.import_module("horovod")
        importlib.import_module(f"horovod.{framework}")
    except ImportError as error:
        raise ImportError(
            f"hvd_compress.{framework} needs Horovod built for {framework} ({error}); pip cannot build it: run "
            "scripts/setup.sh of hvd_compress"
        ) from error
    if not horovod.__version__.startswith("0.28."):
        message = f"hvd_compress is tested with Horovod 0.28.1; this is Horovod {horovod.__version__}"
        warnings.warn(message, stacklevel=3)
