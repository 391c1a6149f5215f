"""How long encoding and decoding take, by codec, size and number of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hvd_compress.bench.arrays import Gradients
from hvd_compress.bench.landmarks import PREFIX, parse_selection, selector
from hvd_compress.bench.machine import Timing, copier, find_torch, limited_to, timed
from hvd_compress.bench.training import measure

__all__ = ["CODECS", "SIZES", "Row", "default_configs", "is_landmark", "measure_rows"]

CODECS = (
    "topk:density=0.01",
    "topk_qsgd:density=0.01,bits=8",
    "randomk:density=0.01",
    "dgc:density=0.001",
    "qsgd:bits=4",
    "jointsq:bits_per_entry=0.32",
)
SIZES = tuple(10**power for power in range(3, 9))
_LANDMARKS = ("largest", "torch.topk", "numpy.partition")


class Row(NamedTuple):
    """One codec at one size.

    Attributes
    ----------
    codec : str
        Its config, or the name of a landmark, which has no payload and nothing to decode.
    n, threads : int
    device : str
    copy, encode, decode : Timing
        `copy`: of n float32 in one thread, beside this codec.
    payload_bytes : int or None
    warm_up : int
        Steps made before.
    """

    codec: str
    n: int
    threads: int
    device: str
    copy: Timing
    encode: Timing
    decode: Timing | None
    payload_bytes: int | None
    warm_up: int

    def facts(self) -> dict[str, Any]:
        """JSON-ready form; None for what a landmark has not."""
        copy, decode = self.copy.median, self.decode and self.decode.median
        return {
            "codec": self.codec,
            "n": self.n,
            "threads": self.threads,
            "device": self.device,
            "copy_ms": 1e3 * copy,
            "encode_ms": 1e3 * self.encode.median,
            "encode_x_copy": self.encode.median / copy,
            "decode_ms": decode and 1e3 * decode,
            "decode_x_copy": decode and decode / copy,
            "payload_bytes": self.payload_bytes,
        }


def is_landmark(config: str) -> bool:
    """Whether this is no codec but a selection by itself."""
    return config.partition(":")[0] == PREFIX


def default_configs(device: str = "cpu") -> list[str]:
    """Codecs and landmarks that can be measured here."""
    missing = {"torch.topk"} if find_torch() is None else set() if device == "cpu" else {"numpy.partition"}
    return [*CODECS, *(f"{PREFIX}:{name},density=0.01" for name in _LANDMARKS if name not in missing)]


def measure_rows(
    sizes: Sequence[int], threads: Sequence[int], configs: Sequence[str], device: str, workers: int, seconds: float
) -> Iterator[Row]:
    """Measure every combination, in that order.

    Parameters
    ----------
    configs : sequence of str
        Of codecs and landmarks.
    workers : int
        Ranks whose payloads are decoded.
    seconds : float
        Time for each figure.
    """
    for n in sizes:
        gradients, copy = Gradients(n, device), copier(n, device)
        for count in threads:
            for config in configs:
                with limited_to(count):
                    copied = timed(copy, seconds / 4, gradients.clock)
                    measured = _measure(config, gradients, workers, seconds)
                yield Row(config, n, count, device, copied, *measured)


def _measure(
    config: str, gradients: Gradients, workers: int, seconds: float
) -> tuple[Timing, Timing | None, int | None, int]:
    if not is_landmark(config):
        return measure(config, gradients, workers, seconds)[:4]
    select = selector(parse_selection(config), gradients)
    select(0)
    return timed(select, seconds, gradients.clock), None, None, 1
