"""Classifiers of small pictures in PyTorch: ResNet-20, VGG and a vision transformer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from hvd_compress.study.torch_transformer import Block

__all__ = ["VGG", "ResNet20", "VisionTransformer"]


def _convolution(channels: int, to: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, to, 3, stride, padding=1, bias=False), nn.BatchNorm2d(to))


class _Residual(nn.Module):
    def __init__(self, channels: int, to: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _convolution(channels, to, stride), _convolution(to, to)
        self.stride, self.added = stride, to - channels

    def forward(self, x: Tensor) -> Tensor:
        # New channels begin at zero, as for CIFAR-10 in the paper: no parameters beside the way.
        around = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return functional.relu(self.second(functional.relu(self.first(x))) + around)


class ResNet20(nn.Module):
    """K. He et al., "Deep residual learning for image recognition", 2016, section 4.2, with n = 3.

    Parameters
    ----------
    channels, classes : int
        Of the pictures.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        blocks = [_Residual(a, b, stride=b // a) for a, b in itertools.pairwise(widths)]
        self.features = nn.Sequential(_convolution(channels, 16), nn.ReLU(), *blocks)
        self.classifier = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes for pictures of shape (batch, channels, height, width)."""
        scores: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return scores


class VGG(nn.Module):
    """K. Simonyan and A. Zisserman, "Very deep convolutional networks", 2015, configuration A, with normalisation.

    As usual for small pictures, one layer classifies; where halving leaves one pixel it stays one.

    Parameters
    ----------
    channels, classes : int
        Of the pictures.
    widths : sequence of int
        Channels of the first layers of the five stages; the paper's by default.
    """

    def __init__(self, channels: int, classes: int, widths: Sequence[int] = (64, 128, 256, 512, 512)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, depth in zip(widths, (1, 1, 2, 2, 2), strict=True):
            for _ in range(depth):
                layers += [_convolution(channels, width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes for pictures of shape (batch, channels, height, width)."""
        scores: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return scores


class VisionTransformer(nn.Module):
    """A. Dosovitskiy et al., "An image is worth 16x16 words", 2021, with the mean of all patches in place of a token.

    Parameters
    ----------
    channels, classes, size : int
        Of the pictures, which are square.
    width, depth : int
        Of the transformer.
    """

    def __init__(self, channels: int, classes: int, size: int, width: int, depth: int) -> None:
        super().__init__()
        patch = 2 if size < 16 else 4
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(0.5 * torch.randn((size // patch) ** 2, width))
        self.blocks = nn.Sequential(
            *(Block(width, width // 32, 2 * width, dropout=0.1, causal=False) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes for pictures of shape (batch, channels, size, size)."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        scores: Tensor = self.classifier(self.norm(self.blocks(x)).mean(1))
        return scores
