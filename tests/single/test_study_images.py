"""Pictures: scikit-learn's digits, and files in the formats of MNIST and CIFAR-10, made here."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_compress.study.errors import UsageError
from hvd_compress.study.image_files import CIFAR, MNIST
from hvd_compress.study.images import load_images

DRAW = np.random.default_rng(0)


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = "", train: int = 60) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for pixels, labels, n in ((MNIST[0], MNIST[1], train), (MNIST[2], MNIST[3], 10)):
        write_idx(folder / f"{pixels}{suffix}", DRAW.integers(0, 256, (n, 28, 28)))
        write_idx(folder / f"{labels}{suffix}", np.arange(n) % 10)


def write_cifar(folder: Path, binary: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(CIFAR):
        pixels, labels = np.full((12, 3072), number, np.uint8), np.arange(12) % 10
        if binary:
            rows = np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            (folder / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=2))


def test_digits_are_1797_pictures_in_three_parts_that_do_not_change() -> None:
    digits, again = load_images(), load_images()
    assert [len(part) for part in (digits.train, digits.validation, digits.test)] == [1198, 300, 299]
    assert (digits.shape, digits.classes, digits.mirror) == ((1, 8), 10, False)
    assert digits.crc32 == again.crc32
    assert int(digits.train.pixels.max()) == 255
    counts = np.bincount(np.concatenate([part.labels for part in (digits.train, digits.validation, digits.test)]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_a_limit_is_of_what_is_trained_on_alone() -> None:
    digits = load_images()
    limited = digits.limited(100)
    assert (len(limited.train), len(limited.validation), len(limited.test)) == (100, 300, 299)
    assert limited.crc32 != digits.crc32


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_read_from_plain_and_gzipped_files(tmp_path: Path, suffix: str) -> None:
    write_mnist(tmp_path, suffix)
    images = load_images(tmp_path)
    assert (images.name, images.shape, images.classes) == ("mnist", (1, 28), 10)
    assert [len(part) for part in (images.train, images.validation, images.test)] == [50, 10, 10]
    assert images.test.labels.tolist() == list(range(10))


def test_pixels_and_labels_stay_together(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    write_mnist(tmp_path)
    write_idx(tmp_path / MNIST[0], np.broadcast_to((np.arange(60) % 10)[:, None, None], (60, 28, 28)))
    images = load_images(tmp_path)
    for part in (images.train, images.validation):
        assert part.pixels[:, 0, 3, 4].tolist() == part.labels.tolist()


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_cifar_is_read_from_both_kinds_of_batches(tmp_path: Path, binary: bool, inner: str) -> None:
    write_cifar(tmp_path / inner, binary)
    images = load_images(tmp_path)
    assert (images.name, images.shape, images.mirror) == ("cifar10", (3, 32), True)
    assert [len(part) for part in (images.train, images.validation, images.test)] == [50, 10, 12]
    assert set(images.train.pixels.ravel()) == {0, 1, 2, 3, 4}
    assert set(images.test.pixels.ravel()) == {5}


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


def test_a_python_batch_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path, binary=False)
    (tmp_path / CIFAR[0]).write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(UsageError, match="which is no array"):
        load_images(tmp_path)
    assert not (tmp_path / "harmed").exists()


def test_damaged_files_and_empty_folders_are_named_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="data must be a folder with"):
        load_images(tmp_path)
    write_mnist(tmp_path)
    path = tmp_path / MNIST[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=f"cannot read the pictures in {tmp_path}"):
        load_images(tmp_path)
    write_idx(path, np.zeros((59, 28, 28)))
    with pytest.raises(UsageError, match="59 pictures and 60 labels"):
        load_images(tmp_path)
