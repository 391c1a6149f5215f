"""Triton, where it is installed: before TensorFlow, because the other way round the process ends."""

from __future__ import annotations

import importlib
import importlib.util
import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("triton"):
        # Without a GPU its kernels run as Python; it looks at this when they are defined.
        os.environ["TRITON_INTERPRET"] = "1" if config.getoption("--device") == "cpu" else "0"
        importlib.import_module("triton")
