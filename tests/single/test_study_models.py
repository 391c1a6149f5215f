"""The models of the studies, and what a rank trains them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from hvd_compress.study.data import Corpus, Vocabulary
from hvd_compress.study.image_files import Part
from hvd_compress.study.images import Images
from hvd_compress.study.torch_language import LanguageTask
from hvd_compress.study.torch_pictures import VisionTask
from hvd_compress.study.torch_transformer import TransformerLanguageModel
from hvd_compress.study.torch_vision import VGG, ResNet20, VisionTransformer
from hvd_compress.study.workers import Workers


class Place(Workers):
    """One rank of a job, which is not there."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_models_have_the_parameters_of_their_papers() -> None:
    # ResNet-20 and VGG-11 with normalisation and one linear layer, for CIFAR-10.
    assert size(ResNet20(3, 10)) == 269_722
    assert size(VGG(3, 10)) == 9_228_362


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: ResNet20(1, 10), (1, 8, 8)),
        (lambda: VGG(1, 10, (16, 32, 64, 128, 256)), (1, 8, 8)),
        (lambda: VGG(1, 10, (16, 32, 64, 128, 256)), (1, 28, 28)),
        (lambda: VisionTransformer(1, 10, 8, 32, 2), (1, 8, 8)),
        (lambda: VisionTransformer(3, 10, 32, 64, 2), (3, 32, 32)),
    ],
)
def test_classifiers_score_every_class_and_every_parameter_learns(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = make()
    scores = model(torch.randn(4, *shape))
    assert scores.shape == (4, 10)
    nn.functional.cross_entropy(scores, torch.arange(4)).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_transformer_sees_no_word_that_is_still_to_come() -> None:
    torch.manual_seed(0)
    model = TransformerLanguageModel(50, 8, width=32)
    words = torch.randint(50, (8, 3))
    changed = words.clone()
    changed[5:] = (changed[5:] + 1) % 50
    before, after = model(words)[0], model(changed)[0]
    torch.testing.assert_close(before[:5], after[:5])
    assert not torch.equal(before[5:], after[5:])


def corpus() -> Corpus:
    words = np.arange(200, dtype=np.int64) % 40
    return Corpus(Vocabulary(tuple(map(str, range(40)))), words, words[:40], words[:40])


def test_ranks_read_what_one_rank_would_read() -> None:
    torch.manual_seed(0)
    model = TransformerLanguageModel(40, 8, width=32)
    tasks = [LanguageTask(model, Place(rank, workers), corpus(), 4, 5) for workers, rank in ((1, 0), (2, 0), (2, 1))]
    assert {task.steps_per_epoch for task in tasks} == {9}
    for step in (0, 1, 10):
        whole, *shares = (task.loss(step).item() for task in tasks)
        assert whole == pytest.approx(sum(shares) / 2, rel=1e-5)


def pictures(n: int) -> Images:
    labels = np.arange(n, dtype=np.int64)
    part = Part(np.broadcast_to(labels[:, None, None, None].astype(np.uint8), (n, 1, 8, 8)), labels)
    return Images("numbered", part, part, part)


class Seen(nn.Module):
    """Remembers which pictures it was shown: their middle, which shifting does not make black."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x[:, 0, 4, 4].tolist()
        return cast(Any, self.scale * torch.zeros(len(x), 20))


def test_an_epoch_shows_every_picture_once_and_the_next_in_another_order() -> None:
    models = [Seen(), Seen()]
    tasks = [VisionTask(model, Place(rank, 2), pictures(20), 4, seed=3) for rank, model in enumerate(models)]
    for step in range(10):
        for task in tasks:
            task.loss(step)
    first = models[0].seen[:10] + models[1].seen[:10]
    second = models[0].seen[10:] + models[1].seen[10:]
    assert len(set(first)) == len(first) == 20
    assert sorted(first) == sorted(second)
    assert first != second


@pytest.mark.parametrize(("size", "most"), [(8, 0), (16, 2), (32, 4)])
def test_pictures_are_moved_by_an_eighth_at_most(size: int, most: int) -> None:
    lit = np.zeros((512, 1, size, size), np.uint8)
    lit[:, 0, 4, 5] = 255
    part = Part(lit, np.zeros(512, np.int64))

    class Where(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.places = {divmod(int(place), size) for place in x.flatten(1).argmax(1)}
            return cast(Any, self.scale * torch.zeros(len(x), 2))

    model = Where()
    VisionTask(model, Place(0, 1), Images("lit", part, part, part), 512, seed=0).loss(0)
    rows, columns = range(4 - most, 5 + most), range(5 - most, 6 + most)
    assert model.places == {(row, column) for row in rows for column in columns}
