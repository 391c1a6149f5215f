"""Name <-> codec class, config <-> codec, config string -> config."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any, TypeVar

from hvd_compress.codec import Codec
from hvd_compress.parameters import Parameter, parameters_of

__all__ = [
    "codec_class",
    "codec_from_config",
    "codec_names",
    "config_of",
    "parse_config",
    "register",
    "split_configs",
]

_CLASSES: dict[str, type[Codec]] = {}
C = TypeVar("C", bound=type[Codec])


def register(name: str) -> Callable[[C], C]:
    """Class decorator: make a codec known under `name`."""

    def add(cls: C) -> C:
        if name in _CLASSES:
            raise ValueError(f"codec name {name!r} is taken by {_CLASSES[name].__name__}")
        cls.name = name
        _CLASSES[name] = cls
        return cls

    return add


def codec_names() -> tuple[str, ...]:
    """Names of all registered codecs."""
    return tuple(_CLASSES)


def codec_class(name: str) -> type[Codec]:
    """Class of a registered codec; ``ValueError`` when there is none of that name."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a codec's name, got {name!r}")
    if name not in _CLASSES:
        raise ValueError(f"name must be one of {', '.join(sorted(_CLASSES))}, got {name!r}")
    return _CLASSES[name]


def config_of(codec: Codec) -> dict[str, Any]:
    """JSON-ready description of a codec; `codec_from_config` undoes it."""
    config: dict[str, Any] = {"name": codec.name}
    for key in parameters_of(codec):
        value = getattr(codec, key)
        config[key] = config_of(value) if isinstance(value, Codec) else value
    return config


def codec_from_config(config: Mapping[str, Any]) -> Codec:
    """Build a codec from ``{"name": ..., parameter: value, ...}``; nested codecs are such mappings themselves.

    Raises
    ------
    TypeError, ValueError
        Misspelt or missing parameter, wrong kind; unknown name, wrong value.
    """
    if "name" not in config:
        raise ValueError(f"config must have a 'name', got {dict(config)!r}")
    values = {key: value for key, value in config.items() if key != "name"}
    cls = codec_class(config["name"])
    known = parameters_of(cls)
    reject_unknown(cls.__name__, values, known)
    for key, (parameter, declared) in known.items():
        if key not in values and declared.default is MISSING:
            raise TypeError(f"{cls.__name__}: {key} must be {parameter.allowed}, but is missing")
        if parameter.kind == "codec" and isinstance(values.get(key), Mapping):
            values[key] = codec_from_config(values[key])
    return cls(**values)


def reject_unknown(owner: str, values: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for the first key of `values` that is not in `known`."""
    for key, value in values.items():
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise TypeError(f"{owner}: no parameter {key!r} (got {key}={value!r}); allowed: {allowed}")


def parse_config(text: str, extra: Mapping[str, Parameter] | None = None) -> dict[str, Any]:
    """Read ``name:key=value,key=value``, whose values are JSON; plain words will do for strings.

    Parameters
    ----------
    text : str
        For example ``"topk:density=0.01"``.
    extra : mapping, optional
        Parameters that may stand beside the codec's own.

    Returns
    -------
    dict
        ``{"name": ..., key: value, ...}``. Keys are not checked here.

    Raises
    ------
    ValueError
        If the text is not of that form or a value is no JSON.
    """
    name, _, rest = text.partition(":")
    config: dict[str, Any] = {"name": name.strip()}
    known = {key: parameter for key, (parameter, _) in parameters_of(codec_class(config["name"])).items()}
    known.update(extra or {})
    decoder = json.JSONDecoder()
    while rest.strip():
        match = re.match(r"\s*(\w+)\s*=\s*", rest)
        if match is None:
            raise ValueError(f"config must look like name:key=value,key=value, got {text!r}")
        key, rest = match[1], rest[match.end() :]
        if key in config:
            raise ValueError(f"config: {key} must be given once, got {text!r}")
        try:
            config[key], end = decoder.raw_decode(rest)
        except json.JSONDecodeError:
            word, end = rest.split(",")[0].strip(), len(rest.split(",")[0])
            if key in known and known[key].kind != "string":
                raise ValueError(f"{name}: {key} must be {known[key].allowed}, got {word!r}") from None
            config[key] = word
        rest = rest[end:].lstrip()
        if rest and not rest.startswith(","):
            raise ValueError(f"config must have a comma between parameters, got {text!r}")
        rest = rest[1:]
    return config


def split_configs(text: str) -> list[str]:
    """Names and config strings out of a list with commas: one before a word without ``=`` begins the next.

    >>> split_configs("none,topk:density=0.01,value_dtype=float16,powersgd:rank=2")
    ['none', 'topk:density=0.01,value_dtype=float16', 'powersgd:rank=2']
    """
    return [config.strip() for config in re.split(r",(?=\s*[A-Za-z][\w-]*\s*(?:[:,]|$))", text)]
