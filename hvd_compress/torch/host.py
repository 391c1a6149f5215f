"""Tensors in the host's memory as NumPy arrays: on small ones NumPy's operations cost half the time of torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["copy_of", "host_array", "on_host", "tensor_of"]

Array = Any


def on_host(tensor: torch.Tensor) -> bool:
    """Whether `host_array` can take a tensor; NumPy has no bfloat16."""
    return tensor.device.type == "cpu" and tensor.dtype != torch.bfloat16


def host_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The same memory as a NumPy array."""
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array


def tensor_of(array: Array) -> torch.Tensor:
    """The same memory as a tensor."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def copy_of(array: Array) -> torch.Tensor:
    """A tensor with memory of its own."""
    return torch.from_numpy(array.copy()) if isinstance(array, np.ndarray) else array.clone()
