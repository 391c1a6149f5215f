"""Classifiers and their pictures, as a study trains them."""

from __future__ import annotations

import horovod.torch as hvd
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hvd_compress.study.image_files import Part
from hvd_compress.study.images import Images
from hvd_compress.study.torch_task import Task
from hvd_compress.study.workers import Workers

__all__ = ["VisionTask"]

PICTURES_AT_ONCE = 256
"""When pictures are only looked at."""


class VisionTask(Task):
    """A classifier on pictures, which are moved by up to an eighth of their size, and mirrored where that is right.

    Parameters
    ----------
    model : nn.Module
        From pictures to scores.
    workers : Workers
    images : Images
    batch_size : int
        Pictures of all ranks together in a step.
    seed : int
        Of the order and the moves.
    """

    def __init__(self, model: nn.Module, workers: Workers, images: Images, batch_size: int, seed: int) -> None:
        super().__init__(model, workers)
        self._images, self._batch_size, self._seed = images, batch_size, seed
        self.steps_per_epoch = len(images.train) // batch_size
        self._mean, self._deviation = float(images.train.pixels.mean()), float(images.train.pixels.std())

    def loss(self, step: int) -> Tensor:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._images.train))
        batch = order[place * self._batch_size : (place + 1) * self._batch_size]
        mine = self._images.train.take(batch[self.workers.rank :: self.workers.size])
        draws = np.random.default_rng((self._seed, step, self.workers.rank))
        pixels = _moved(mine.pixels, _most_pixels(self._images.shape[1]), draws)
        if self._images.mirror:
            turned = draws.random(len(pixels)) < 0.5
            pixels[turned] = pixels[turned][..., ::-1]
        return functional.cross_entropy(self._scores(pixels), torch.from_numpy(mine.labels))

    @torch.no_grad()
    def score(self, part: str) -> float:
        self._share_buffers()
        pictures: Part = getattr(self._images, part)
        mine = pictures.take(np.arange(self.workers.rank, len(pictures), self.workers.size))
        self.model.eval()
        hits = 0
        for start in range(0, len(mine), PICTURES_AT_ONCE):
            scores = self._scores(mine.pixels[start : start + PICTURES_AT_ONCE])
            hits += int((scores.argmax(1).numpy() == mine.labels[start : start + PICTURES_AT_ONCE]).sum())
        self.model.train()
        (total,) = self.workers.total([hits], "accuracy")
        return total / len(pictures)

    def _scores(self, pixels: NDArray[np.uint8]) -> Tensor:
        scores: Tensor = self.model((torch.from_numpy(pixels).float() - self._mean) / self._deviation)
        return scores

    def _share_buffers(self) -> None:
        """Average the statistics of normalisation layers, which each rank takes of its own pictures."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        if buffers and self.workers.size > 1:
            hvd.grouped_allreduce_(buffers, name="study.buffers")


def _most_pixels(size: int) -> int:
    """How far a picture is moved; a single pixel of the digits' eight would be too far for a transformer."""
    return size // 8 if size >= 16 else 0


def _moved(pixels: NDArray[np.uint8], most: int, draws: np.random.Generator) -> NDArray[np.uint8]:
    """Each picture moved by up to `most` pixels in both directions; what comes in is black."""
    n, _, size, _ = pixels.shape
    padded = np.pad(pixels, ((0, 0), (0, 0), (most, most), (most, most)))
    rows, cols = draws.integers(0, 2 * most + 1, (2, n, 1)) + np.arange(size)
    moved: NDArray[np.uint8] = padded[np.arange(n)[:, None, None], :, rows[:, :, None], cols[:, None, :]]
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2))
