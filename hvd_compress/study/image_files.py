"""Pictures in the files that MNIST and CIFAR-10 come in."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CIFAR", "MNIST", "Part", "read_cifar", "read_mnist"]

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class Part:
    """Pictures, uint8 of shape (n, channels, size, size), and their classes, int64 of shape (n,)."""

    pixels: Pixels
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> Part:
        """Some of them."""
        return Part(self.pixels[indices], self.labels[indices])


def read_mnist(folder: Path) -> tuple[Part, Part] | None:
    """Pictures to train on and to test with from a folder's IDX files, plain or gzipped; None if it has none."""
    files = [_found(folder, name, ".gz") for name in MNIST]
    if not all(files):
        return None
    train, train_labels, test, test_labels = (_idx(file) for file in files if file)
    return _part(train[:, None], train_labels), _part(test[:, None], test_labels)


def read_cifar(folder: Path) -> tuple[Part, Part] | None:
    """Pictures to train on and to test with from a folder's binary or Python batches; None if it has none."""
    files = [_found(folder, name, ".bin") for name in CIFAR]
    if not all(files):
        return None
    *train, test = ((_binary_batch if file.suffix else _python_batch)(file) for file in files if file)
    pixels, labels = (np.concatenate([getattr(part, name) for part in train]) for name in ("pixels", "labels"))
    return Part(pixels, labels), test


def _found(folder: Path, name: str, suffix: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}{suffix}") if path.is_file()), None)


def _part(pixels: Pixels, labels: Any) -> Part:
    if len(pixels) != len(labels):
        raise ValueError(f"there are {len(pixels)} pictures and {len(labels)} labels")
    return Part(pixels, np.array(labels, np.int64))


def _idx(path: Path) -> Pixels:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{path.name} is no IDX file of bytes")
    shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def _binary_batch(path: Path) -> Part:
    rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 3073)
    return _part(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])


def _python_batch(path: Path) -> Part:
    with path.open("rb") as file:
        batch = _Arrays(file, encoding="bytes").load()
    return _part(batch[b"data"].reshape(-1, 3, 32, 32), batch[b"labels"])


class _Arrays(pickle.Unpickler):
    """Reads arrays and nothing that could run code."""

    allowed = frozenset({"_reconstruct", "ndarray", "dtype", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in ("numpy", "_codecs") or name not in self.allowed:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array")
        return super().find_class(module, name)
