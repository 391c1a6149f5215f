"""Pictures for the vision models: scikit-learn's digits, or MNIST or CIFAR-10 where the user has them."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hvd_compress.study.errors import UsageError
from hvd_compress.study.image_files import CIFAR, MNIST, Part, read_cifar, read_mnist

__all__ = ["Images", "load_images"]

VALIDATION_SHARE = TEST_SHARE = 1 / 6
"""Of all pictures; where a data set has a test part of its own, validation is this share of the others."""


@dataclass(frozen=True)
class Images:
    """A data set.

    Parameters
    ----------
    name : str
        "digits", "mnist" or "cifar10".
    train, validation, test : Part
    mirror : bool
        Whether a picture's mirror image is of the same class.
    """

    name: str
    train: Part
    validation: Part
    test: Part
    mirror: bool = False

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.train.labels.max()) + 1

    @property
    def shape(self) -> tuple[int, int]:
        """Channels, and height, which is the width too."""
        return self.train.pixels.shape[1], self.train.pixels.shape[2]

    @property
    def crc32(self) -> int:
        """A checksum of all parts."""
        crc = 0
        for part in (self.train, self.validation, self.test):
            crc = zlib.crc32(part.labels.tobytes(), zlib.crc32(part.pixels.tobytes(), crc))
        return crc

    def limited(self, train: int) -> Images:
        """The same with no more than so many pictures to train on."""
        return replace(self, train=self.train.take(np.arange(min(train, len(self.train)))))


def load_images(path: Path | None = None) -> Images:
    """Read MNIST (IDX files) or CIFAR-10 (binary or Python batches) from a folder; scikit-learn's digits without one.

    Raises
    ------
    UsageError
        The folder holds neither, or a file is damaged.
    """
    if path is None:
        return _digits()
    for folder in (path, *(path / name for name in ("MNIST/raw", "cifar-10-batches-py", "cifar-10-batches-bin"))):
        try:
            mnist, cifar = read_mnist(folder), read_cifar(folder)
        except (OSError, EOFError, ValueError, KeyError, IndexError, zlib.error, pickle.UnpicklingError) as error:
            raise UsageError(f"cannot read the pictures in {folder}: {error}; give --data whole files") from error
        if mnist:
            return Images("mnist", *_split(mnist[0], VALIDATION_SHARE), mnist[1])
        if cifar:
            return Images("cifar10", *_split(cifar[0], VALIDATION_SHARE), cifar[1], mirror=True)
    raise UsageError(
        f"data must be a folder with MNIST's IDX files ({MNIST[0]}, ...) or CIFAR-10's batches ({CIFAR[0]}, ...), "
        f"got {path}"
    )


def _digits() -> Images:
    # Imported here because it takes seconds.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    everything = Part(pixels, bunch.target.astype(np.int64))
    train, rest = _split(everything, VALIDATION_SHARE + TEST_SHARE)
    return Images("digits", train, *_split(rest, 0.5))


def _split(part: Part, share: float) -> tuple[Part, Part]:
    """All but a share, and the share; the same pictures each time."""
    order, first = np.random.default_rng(0).permutation(len(part)), round(len(part) * (1 - share))
    return part.take(order[:first]), part.take(order[first:])
