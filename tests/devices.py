"""Where the tensors of the backends "device" and "triton" are: the option --device of pytest."""

from __future__ import annotations

import os

__all__ = ["device", "set_device"]

_VARIABLE = "HVD_COMPRESS_TEST_DEVICE"


def set_device(name: str) -> None:
    """Note it, also for processes that tests start."""
    os.environ[_VARIABLE] = name


def device() -> str:
    """Name of a device of torch's."""
    return os.environ.get(_VARIABLE, "cpu")
