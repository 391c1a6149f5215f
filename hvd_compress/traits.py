"""What tells one kind of codec from another."""

from __future__ import annotations

from enum import Enum

__all__ = ["Feedback", "Reduction"]


class Reduction(Enum):
    """How the ranks' payloads are combined."""

    SUM = 1
    """Element-wise sums of payloads mean something: Horovod's own allreduce carries them."""
    GATHER = 2
    """Every rank receives all payloads, decodes and adds them."""
    TWO_PHASE = 3
    """Payloads are summed, each rank makes a second one of that sum and its own gradient, and these are summed too."""


class Feedback(Enum):
    """What error feedback (:class:`hvd_compress.ErrorFeedback`) does for a codec."""

    REFUSED = 0
    """It diverges, because the codec scales up what it sends, or there is nothing to feed back."""
    OPTIONAL = 1
    """It works; the codec is published without."""
    USUAL = 2
    """The codec is published with it."""
    REQUIRED = 3
    """Without it the codec shrinks every gradient."""
