"""``Compression``: every codec as a factory of compressors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import horovod.torch as hvd
import torch

from hvd_compress.parameters import parameters_of
from hvd_compress.policy import compose, compose_config, wrapper_defaults, wrapper_parameters
from hvd_compress.registry import codec_class, codec_names
from hvd_compress.torch.compressor import Compressor

__all__ = ["Compression"]

_OWN = ("named_parameters", "grad_scaler")


class Compression(hvd.Compression):  # type: ignore[misc]
    """Horovod's ``Compression`` with a method for each registered codec.

    `none` and `fp16` are Horovod's own. The others take the codec's parameters and

    error_feedback : bool
        Add what was not sent to the next gradient. Default: as the codec was published.
    min_elements, min_ndim : int
        The smallest tensors to compress (1024 entries, 2 dimensions); others go dense.
    named_parameters, grad_scaler
        See :class:`Compressor`.

    ``python -m hvd_compress list`` shows codecs and parameters.
    """

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | str,
        *,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        grad_scaler: Any = None,
    ) -> Any:
        """Make a compressor from ``"topk:density=0.01"`` or ``{"name": "topk", "density": 0.01}``.

        Raises
        ------
        TypeError, ValueError
            As the codec's own method; ``ValueError`` also for a string of another form.
        """
        if not isinstance(config, str | Mapping):
            raise TypeError(f"config must be a mapping or a string, got {config!r}")
        for name in ("none", "fp16"):
            if config == name or config == {"name": name}:
                return getattr(cls, name)
        known = sorted({"fp16", *_codecs(), "none"})
        chosen = config.partition(":")[0].strip() if isinstance(config, str) else config.get("name")
        if chosen in ("none", "fp16"):
            raise TypeError(f"{chosen} is Horovod's own and takes no parameters, got {config!r}")
        if isinstance(chosen, str) and chosen not in known:
            raise ValueError(f"compression must be one of {', '.join(known)}, got {config!r}")
        return Compressor(compose_config(config), named_parameters=named_parameters, grad_scaler=grad_scaler)


def _codecs() -> list[str]:
    return [name for name in codec_names() if not hasattr(hvd.Compression, name) and not codec_class(name).wrapper]


def _factory(name: str) -> Callable[..., Compressor]:
    cls = codec_class(name)
    declared = {key: field.default for key, (_, field) in parameters_of(cls).items()}
    defaults = {**declared, **wrapper_defaults(cls()), **dict.fromkeys(_OWN)}
    signature = inspect.Signature(
        [
            inspect.Parameter(
                key,
                inspect.Parameter.POSITIONAL_OR_KEYWORD if key in declared else inspect.Parameter.KEYWORD_ONLY,
                default=default,
            )
            for key, default in defaults.items()
        ]
    )

    def make(*positional: Any, **parameters: Any) -> Compressor:
        if len(positional) > len(declared):
            raise TypeError(f"{cls.__name__}: {len(positional)} values without a name; allowed: {', '.join(declared)}")
        for key, value in zip(declared, positional, strict=False):
            if key in parameters:
                raise TypeError(f"{cls.__name__}: {key} must be given once, got {value!r} and {parameters[key]!r}")
            parameters[key] = value
        own = {key: parameters.pop(key) for key in _OWN if key in parameters}
        return Compressor(compose(name, **parameters), **own)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = _documentation(name, defaults)
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


def _documentation(name: str, defaults: Mapping[str, Any]) -> str:
    cls = codec_class(name)
    known = {key: parameter for key, (parameter, _) in parameters_of(cls).items()} | wrapper_parameters()
    lines = [f"{inspect.getdoc(cls)}", "", "This method makes a compressor of it for Horovod and takes", ""]
    for key in defaults:
        if key in known:
            lines.append(f"{key} : {known[key].allowed}\n    {known[key].meaning[0].upper()}{known[key].meaning[1:]}.")
    lines.append(f"{', '.join(_OWN)}\n    See `hvd_compress.torch.Compressor`.")
    return "\n".join(lines)


for _name in _codecs():
    setattr(Compression, _name, staticmethod(_factory(_name)))
