"""Codecs whose payloads have a given size: values for the parameters that a codec names as its knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from hvd_compress.codec import Codec
from hvd_compress.parameters import parameters_of
from hvd_compress.payload import TensorSpec

__all__ = ["fits", "fitted", "within_reach"]

_HALVINGS = 64


def fits(codec: Codec, spec: TensorSpec, nbytes: int) -> bool:
    """Whether no payload is larger than `nbytes`."""
    return codec.payload_nbytes(spec) <= nbytes


def within_reach(codecs: Sequence[Codec], spec: TensorSpec, nbytes: int) -> list[Codec]:
    """Those of some codecs that fit; where none does, the one with the smallest payload."""
    smallest = min(codecs, key=lambda codec: codec.payload_nbytes(spec))
    return [codec for codec in codecs if fits(codec, spec, nbytes)] or [smallest]


def fitted(codec: Codec, spec: TensorSpec, nbytes: int, knobs: Sequence[str] | None = None) -> list[Codec]:
    """Turn a codec's knobs until its payloads come closest to `nbytes` from below.

    Parameters
    ----------
    codec : Codec
        Parameters other than the knobs are kept.
    spec : TensorSpec
        Of the tensor that it is for.
    nbytes : int
        Size of a payload, without the seal.
    knobs : sequence of str, optional
        Those to turn; the codec's own by default.

    Returns
    -------
    list of Codec
        One for each setting of the knobs after the first with which it can be done. Where there is none, or there are
        no knobs, the one with the smallest payload; see `fits`.

    Examples
    --------
    >>> from hvd_compress import QSGD, TopK
    >>> [codec.density for codec in fitted(TopK(), TensorSpec((1000,), "float32"), 4000)]
    [0.9665]
    >>> [(codec.bits, codec.bucket_size) for codec in fitted(QSGD(), TensorSpec((1000,), "float32"), 500)]
    [(2, 17), (3, 35)]
    """
    knobs = codec.knobs if knobs is None else knobs
    if not knobs:
        return [codec]
    fine, *others = knobs
    steps = product(*(_values(codec, knob) for knob in others))
    variants = [_turned(codec, dict(zip(others, values, strict=True))) for values in steps]
    return within_reach([_largest_that_fits(variant, fine, spec, nbytes) for variant in variants], spec, nbytes)


def _turned(codec: Codec, values: Mapping[str, Any]) -> Codec:
    return replace(codec, **values)  # type: ignore[type-var]  # Codecs are dataclasses, which the base class is not.


def _values(codec: Codec, knob: str) -> range:
    parameter, _ = parameters_of(codec)[knob]
    if parameter.kind != "integer" or parameter.low is None or parameter.high is None:
        raise TypeError(f"{type(codec).__name__}: {knob} must be an integer between two bounds to be a lesser knob")
    return range(int(parameter.low), int(parameter.high) + 1)


def _largest_that_fits(codec: Codec, knob: str, spec: TensorSpec, nbytes: int) -> Codec:
    """The codec with one parameter changed; with the smallest payload if none fits."""
    small, large, middle = _interval(codec, knob, spec)

    def at(value: Any) -> Codec:
        return _turned(codec, {knob: value})

    if at(small).payload_nbytes(spec) > at(large).payload_nbytes(spec):
        small, large = large, small
    if fits(at(large), spec, nbytes):
        return at(large)
    # Sizes follow a knob but for a byte of an index code here and there.
    for _ in range(_HALVINGS):
        between = middle(small, large)
        if fits(at(between), spec, nbytes):
            small = between
        else:
            large = between
    return at(small)


def _interval(codec: Codec, knob: str, spec: TensorSpec) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
    """Both ends of what a knob may be, and what is in the middle of two values."""
    parameter, _ = parameters_of(codec)[knob]
    low, high = parameter.low, parameter.high
    if parameter.kind == "integer" and low is not None:
        # 0 stands for all entries where it is allowed; numel says the same, in order.
        return max(1, int(low)), max(1, spec.numel) if high is None else int(high), lambda x, y: (x + y) // 2
    if parameter.kind == "number" and low is not None and high is not None:
        return max(low, high * 2.0**-_HALVINGS), high, lambda x, y: (x + y) / 2
    raise TypeError(f"{type(codec).__name__}: {knob} must be a number or an integer to be a knob")
