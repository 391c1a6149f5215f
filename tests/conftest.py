"""The option --device."""

from __future__ import annotations

import pytest

from tests.devices import set_device


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", choices=("cpu", "cuda"), help="where tensors of a device are")


def pytest_configure(config: pytest.Config) -> None:
    device = config.getoption("--device")
    if device != "cpu":
        import torch

        if not torch.cuda.is_available():
            raise pytest.UsageError(f"--device {device}: torch {torch.__version__} sees no such device here")
    set_device(device)
