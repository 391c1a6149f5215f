"""The shapes of ResNet-50's parameters: a gradient as a training job really has it."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["shapes"]

Shape = tuple[int, ...]

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of the blocks of each stage."""


def shapes() -> dict[str, Shape]:
    """Name and shape of each parameter, in the order of the layers.

    References
    ----------
    K. He et al., "Deep residual learning for image recognition", 2015, table 1; names as in torchvision.

    Examples
    --------
    >>> import math
    >>> len(shapes()), sum(math.prod(shape) for shape in shapes().values())
    (161, 25557032)
    """
    return dict(_layers())


def _layers() -> Iterator[tuple[str, Shape]]:
    yield from _convolution("conv1", "bn1", 64, 3, 7)
    channels = 64
    for stage, (width, blocks) in enumerate(STAGES, start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            yield from _convolution(f"{name}.conv1", f"{name}.bn1", width, channels, 1)
            yield from _convolution(f"{name}.conv2", f"{name}.bn2", width, width, 3)
            yield from _convolution(f"{name}.conv3", f"{name}.bn3", 4 * width, width, 1)
            if block == 0:
                yield from _convolution(f"{name}.downsample.0", f"{name}.downsample.1", 4 * width, channels, 1)
            channels = 4 * width
    yield "fc.weight", (1000, channels)
    yield "fc.bias", (1000,)


def _convolution(name: str, normalisation: str, outputs: int, inputs: int, size: int) -> Iterator[tuple[str, Shape]]:
    """A convolution without bias, and the batch normalisation behind it."""
    yield f"{name}.weight", (outputs, inputs, size, size)
    yield f"{normalisation}.weight", (outputs,)
    yield f"{normalisation}.bias", (outputs,)
