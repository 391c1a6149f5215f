"""Which tensors a codec handles, and the stack of wrappers that users get by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hvd_compress.chunks import Chunked
from hvd_compress.codec import Codec, Feedback
from hvd_compress.codecs.none import Dense
from hvd_compress.ef21 import EF21
from hvd_compress.feedback import ErrorFeedback
from hvd_compress.parameters import (
    Parameter,
    check_parameters,
    checked,
    choice,
    flag,
    integer,
    nested,
    parameters_of,
    real,
)
from hvd_compress.payload import TensorSpec
from hvd_compress.registry import codec_class, config_of, parse_config, reject_unknown

__all__ = ["BySize", "Policy", "compose", "compose_config", "wrapper_defaults", "wrapper_parameters"]


_LARGEST = 2**31
"""Entries from which on a tensor is compressed in pieces."""


class Policy(Protocol):
    """Chooses the codec of each tensor by facts on which all ranks agree without talking."""

    @property
    def codec(self) -> Codec:
        """The codec that stands for all; they have momentum or leave it to the optimizer, as it does."""

    @property
    def config(self) -> dict[str, Any]:
        """JSON-ready form, equal for equal policies."""

    def at_step(self, step: int) -> Policy:
        """Return the policy of one step."""

    def for_tensor(self, name: str, spec: TensorSpec) -> Codec:
        """Return the codec for one tensor."""


@dataclass(frozen=True)
class BySize:
    """Compress large tensors only; the others go dense, where Horovod fuses them.

    The choice depends on the spec alone, so ranks agree without talking.

    Parameters
    ----------
    codec : Codec
        For tensors of at least `min_elements` entries and `min_ndim` dimensions.
    min_elements, min_ndim : int
        The smallest tensors to compress. The defaults leave out biases and the scales of normalisation layers.
    """

    codec: Codec = nested(Codec, "for the large tensors")
    min_elements: int = integer(1024, 0, "fewest entries of a tensor that is compressed")
    min_ndim: int = integer(2, 0, "fewest dimensions of a tensor that is compressed")

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def config(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"codec": config_of(self.codec), "min_elements": self.min_elements, "min_ndim": self.min_ndim}

    def at_step(self, step: int) -> BySize:
        """The same at every step: a schedule of its own is the codec's matter."""
        return self

    def for_tensor(self, name: str, spec: TensorSpec) -> Codec:
        """Return the codec for one tensor."""
        if spec.numel < self.min_elements or len(spec.shape) < self.min_ndim:
            return self.codec.companion or Dense()
        codec = self.codec.for_tensor(name, spec)
        return Chunked(codec) if spec.numel >= _LARGEST and codec.in_pieces else codec


@dataclass(frozen=True)
class _Feedback:
    error_feedback: bool = flag(True, "add what was not sent to the next gradient (default: as published)")
    feedback: str = choice("ef", ("ef", "ef21"), "how: add it, or send what changes")
    eta: float = real(1.0, 0.0, 1.0, "ef21: weight of a new gradient in an average", low_open=True)
    low_pass: float = real(1.0, 0.0, 1.0, "ef: weight of what is new in the residual", low_open=True)


_RULES = parameters_of(_Feedback).keys()


def wrapper_parameters() -> dict[str, Parameter]:
    """Parameters that `compose` takes beside the codec's own."""
    declared = {**parameters_of(_Feedback), **parameters_of(BySize)}
    return {name: parameter for name, (parameter, _) in declared.items() if name != "codec"}


def wrapper_defaults(codec: Codec) -> dict[str, Any]:
    """Defaults of the parameters that `compose` takes beside those of `codec`."""
    declared = {**parameters_of(_Feedback), **parameters_of(BySize)}
    defaults = {name: field.default for name, (_, field) in declared.items() if name != "codec"}
    return {**defaults, "error_feedback": codec.feedback in (Feedback.USUAL, Feedback.REQUIRED)}


def compose(name: str, **parameters: Any) -> BySize:
    """Build a codec with the wrappers around it.

    Parameters
    ----------
    name : str
        A registered codec.
    **parameters
        The codec's own, and `error_feedback` (default: as the codec was published), `feedback` ("ef"; "ef21" implies
        it) with `eta` (as for `EF21`) or `low_pass` (as for `ErrorFeedback`), `min_elements`, `min_ndim` (as for
        `BySize`).

    Raises
    ------
    TypeError, ValueError
        Misspelt parameter or wrong kind; unknown name or wrong value. The message names parameter, value and what is
        allowed.

    Examples
    --------
    >>> policy = compose("topk", density=0.1, min_ndim=1)
    >>> policy.codec.name, policy.codec.inner.density, policy.min_elements
    ('error_feedback', 0.1, 1024)
    >>> compose("topk", denisty=0.1)
    Traceback (most recent call last):
    ...
    TypeError: TopK: no parameter 'denisty' (got denisty=0.1); allowed: density, value_dtype, index_codec, scope, \
rebudget_steps, error_feedback, feedback, eta, low_pass, min_elements, min_ndim
    """
    cls = codec_class(name)
    own, wrappers = parameters_of(cls), wrapper_parameters()
    reject_unknown(cls.__name__, parameters, {**own, **wrappers})
    codec: Codec = cls(**{key: value for key, value in parameters.items() if key in own})
    given = {key: value for key, value in parameters.items() if key in wrappers}
    rule = {key: checked(cls.__name__, key, wrappers[key], given.pop(key)) for key in _RULES & given.keys()}
    sizes = {key: given.pop(key) for key in parameters_of(BySize).keys() & given.keys()}
    return BySize(_fed_back(codec, rule), **sizes)


def _fed_back(codec: Codec, chosen: Mapping[str, Any]) -> Codec:
    """The codec with the feedback around it that was chosen, by what it was published with."""
    usual, name = codec.feedback in (Feedback.USUAL, Feedback.REQUIRED), type(codec).__name__
    rule, eta, low_pass = chosen.get("feedback", "ef"), chosen.get("eta", 1.0), chosen.get("low_pass", 1.0)
    wanted = chosen.get("error_feedback", usual or rule == "ef21")
    if eta != 1.0 and rule != "ef21":
        raise ValueError(f"{name}: eta must be 1 unless feedback is 'ef21', got {eta!r}")
    if low_pass != 1.0 and (rule != "ef" or not wanted):
        raise ValueError(f"{name}: low_pass must be 1 unless there is error feedback by 'ef', got {low_pass!r}")
    if wanted:
        return EF21(codec, eta=eta) if rule == "ef21" else ErrorFeedback(codec, low_pass=low_pass)
    if rule == "ef21":
        raise ValueError(f"{name}: error_feedback must be true with feedback='ef21', got false")
    if codec.feedback is Feedback.REQUIRED:
        raise ValueError(f"{name}: error_feedback must be true with {codec!r}, which shrinks every gradient without it")
    return codec


def compose_config(config: Mapping[str, Any] | str) -> BySize:
    """`compose` from ``{"name": ..., parameter: value}`` or ``"name:parameter=value,parameter=value"``.

    Raises
    ------
    TypeError, ValueError
        As `compose`; ``ValueError`` also for a string that is not of this form.
    """
    if isinstance(config, str):
        config = parse_config(config, wrapper_parameters())
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a mapping or a string, got {config!r}")
    if "name" not in config:
        raise ValueError(f"config must have a 'name', got {dict(config)!r}")
    return compose(**config)
