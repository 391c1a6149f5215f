"""All codecs on one tensor at equal bytes: with which parameters, what is lost, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvd_compress.codec import Array, Codec, Reduction
from hvd_compress.codecs import TopK, TopKQSGD
from hvd_compress.exchange import spec_of
from hvd_compress.fitting import fitted, within_reach
from hvd_compress.generator import Site
from hvd_compress.ops import ops_for
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import codec_class, codec_names, config_of
from hvd_compress.relay import alone
from hvd_compress.wire import add_payload, pack, unpack

__all__ = ["FIXED_WIDTH", "Choice", "Measured", "compare"]

FIXED_WIDTH = "best fixed width"
"""Top-k with values of one width, fitted as JointSQ fits them: the best that tuning by hand finds."""
_WIDTHS = (2, 3, 4, 5, 6, 8)
_SITE = Site("tensor", step=0)
_RUNS, _ENOUGH_SECONDS = 3, 1.0

T = TypeVar("T")


class Measured(NamedTuple):
    """What a codec makes of a tensor.

    Attributes
    ----------
    nbytes : int
        Of its payload, without the seal.
    relative_error : float
        ``||x - C(x)||**2 / ||x||**2``.
    encode_seconds, decode_seconds : float
        Shortest of up to three runs.
    """

    nbytes: int
    relative_error: float
    encode_seconds: float
    decode_seconds: float


class Choice(NamedTuple):
    """The setting of one method that loses least at a size.

    Attributes
    ----------
    method : str
        A codec's name, or `FIXED_WIDTH`.
    codec : Codec
    measured : Measured
    within_budget : bool
        Whether it is as small as asked; if not, it is the smallest of its method.
    """

    method: str
    codec: Codec
    measured: Measured
    within_budget: bool

    def facts(self, dense_nbytes: int) -> dict[str, Any]:
        """Describe it, JSON-ready."""
        return {
            "method": self.method,
            "config": config_of(self.codec),
            "within_budget": self.within_budget,
            "compression_ratio": dense_nbytes / self.measured.nbytes,
            **self.measured._asdict(),
        }


def compare(
    x: NDArray[Any], sizes: Sequence[int], tracked: Callable[[Collection[Codec]], Iterable[Codec]] = iter
) -> list[list[Choice]]:
    """Compress an array with every registered codec, at payloads that come closest to some sizes from below.

    Parameters
    ----------
    x : array
        Floating-point, finite, and not all zeros.
    sizes : sequence of int
        Bytes of a payload, without the seal.
    tracked : callable, optional
        Gives the codecs to be measured one by one, and may say how far it is.

    Returns
    -------
    list of lists of Choice
        One list for each size, in the order of registration.
    """
    spec = spec_of(ops_for(x), x)
    plans = [_settings(spec, nbytes) for nbytes in sizes]
    codecs = dict.fromkeys(codec for plan in plans for settings in plan.values() for codec in settings)
    measured = {codec: _measure(codec, x, spec) for codec in tracked(codecs)}

    def best(method: str, settings: list[Codec], nbytes: int) -> Choice:
        codec = min(settings, key=lambda codec: measured[codec].relative_error)
        return Choice(method, codec, measured[codec], measured[codec].nbytes <= nbytes)

    return [
        [best(method, settings, nbytes) for method, settings in plan.items()]
        for plan, nbytes in zip(plans, sizes, strict=True)
    ]


def _settings(spec: TensorSpec, nbytes: int) -> dict[str, list[Codec]]:
    """Settings of each method that come closest to a size."""
    classes = [codec_class(name) for name in codec_names()]
    settings = {cls.name: fitted(cls(), spec, nbytes) for cls in classes if not cls.wrapper}
    widths: list[Codec] = [TopKQSGD(bits=bits, grid="fitted", bucket_size=0) for bits in _WIDTHS]
    widths += [TopK(value_dtype="float16"), TopK(value_dtype="float32")]
    at_size = [codec for width in widths for codec in fitted(width, spec, nbytes, ["density"])]
    return {**settings, FIXED_WIDTH: within_reach(at_size, spec, nbytes)}


def _measure(codec: Codec, x: NDArray[Any], spec: TensorSpec) -> Measured:
    ops = ops_for(x)
    state, codec, flat = codec.init(ops, spec), codec.at_step(_SITE.step), ops.flatten(x)
    summed = codec.reduction is not Reduction.GATHER

    def encode() -> tuple[Array, ...]:
        payload, _ = codec.encode(ops, flat, state, _SITE)
        payload = alone(codec, ops, payload, spec, _SITE)
        return payload.parts if summed else (pack(ops, payload),)

    def decode() -> Array:
        if summed:
            return codec.decode(ops, Payload(sent), spec, _SITE)
        return add_payload(ops, codec, ops.zeros(spec.numel), unpack(ops, sent[0], codec, spec), spec, _SITE)

    with ops.quiet():
        sent, encode_seconds = _timed(encode)
        decoded, decode_seconds = _timed(decode)
    exact = flat.astype(np.float64)
    error = np.sum((exact - decoded) ** 2) / np.sum(exact**2)
    nbytes = sum(ops.shape(ops.to_bytes(part))[0] for part in sent)
    return Measured(nbytes, float(error), encode_seconds, decode_seconds)


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """Result and seconds of a call: the shortest of some runs, where they do not take long."""
    seconds: list[float] = []
    while True:
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
        if len(seconds) == _RUNS or sum(seconds) > _ENOUGH_SECONDS:
            return result, min(seconds)
