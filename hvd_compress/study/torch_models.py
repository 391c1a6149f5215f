"""The models of the studies by name, each with the data that it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from hvd_compress.study.cells import Cell
from hvd_compress.study.data import Corpus
from hvd_compress.study.evaluation import LENGTH
from hvd_compress.study.images import Images
from hvd_compress.study.plans import Plan
from hvd_compress.study.torch_language import LanguageTask
from hvd_compress.study.torch_model import build_model
from hvd_compress.study.torch_pictures import VisionTask
from hvd_compress.study.torch_task import Task
from hvd_compress.study.torch_transformer import TransformerLanguageModel
from hvd_compress.study.torch_vision import VGG, ResNet20, VisionTransformer
from hvd_compress.study.workers import Workers

__all__ = ["Data", "build_task"]

Data = Corpus | Images

VISION: dict[str, Callable[[int, int, int], nn.Module]] = {
    "resnet20": lambda channels, size, classes: ResNet20(channels, classes),
    "vgg": lambda channels, size, classes: VGG(channels, classes),
    "vgg-small": lambda channels, size, classes: VGG(channels, classes, widths=(16, 32, 64, 128, 256)),
    "vit": lambda channels, size, classes: VisionTransformer(channels, classes, size, width=256, depth=6),
    "vit-small": lambda channels, size, classes: VisionTransformer(channels, classes, size, width=128, depth=3),
}
"""By name, from channels and size of pictures and number of classes."""


def build_task(
    cell: Cell, data: Data, plan: Plan, parameters: Mapping[str, float], seed: int, workers: Workers
) -> Task:
    """The model of a cell with its data; its parameters depend on the seed alone."""
    torch.manual_seed(seed)
    if isinstance(data, Images):
        model = VISION[cell.model](*data.shape, data.classes)
        return VisionTask(model, workers, data, plan.batch_size, seed)
    words, dropout = len(data.vocabulary), parameters.get("dropout", 0.0)
    if cell.model == "transformer":
        model = TransformerLanguageModel(words, max(plan.sequence_length, LENGTH), dropout)
    else:
        model = build_model(cell.model.removeprefix("lstm-"), words, dropout)
    return LanguageTask(model, workers, data, plan.batch_size, plan.sequence_length)
