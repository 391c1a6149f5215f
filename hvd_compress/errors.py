"""What goes wrong while gradients are exchanged."""

from __future__ import annotations

__all__ = ["CompressionError", "explained"]


class CompressionError(RuntimeError):
    """Compressed communication failed; the message names the tensor."""


def explained(error: Exception, key: str, shape: tuple[int, ...], dtype: str) -> CompressionError:
    """Add the tensor's name, shape and dtype to an error, once, at the edge."""
    return CompressionError(f"{key} {tuple(shape)} {dtype}: {error}")
