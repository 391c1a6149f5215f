"""Every codec as a method of ``Compression``: what the namespaces of all frameworks share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hvd_compress.parameters import parameters_of
from hvd_compress.policy import compose, compose_config, wrapper_defaults, wrapper_parameters
from hvd_compress.registry import codec_class, codec_names
from hvd_compress.rules import policy_of

__all__ = ["with_factories"]

T = TypeVar("T", bound=type)


def with_factories(compressor: Callable[..., Any], own: tuple[str, ...]) -> Callable[[T], T]:
    """Return a class decorator that adds a method for each codec, and ``from_config``.

    Parameters
    ----------
    compressor : callable
        Makes a compressor of a policy and the `own` keywords.
    own : tuple of str
        Keywords that belong to the compressor and not to the codec; all default to None.
    """

    def decorate(cls: T) -> T:
        names = [name for name in codec_names() if not hasattr(cls, name) and not codec_class(name).wrapper]

        def from_config(config: Mapping[str, Any] | str, **keywords: Any) -> Any:
            """Make a compressor from ``"topk:density=0.01"`` or ``{"name": "topk", "density": 0.01}``.

            Keyword arguments are those of the compressor itself.

            Raises
            ------
            TypeError, ValueError
                As the codec's own method; ``ValueError`` also for a string of another form.
            """
            if not isinstance(config, str | Mapping):
                raise TypeError(f"config must be a mapping or a string, got {config!r}")
            for key, value in keywords.items():
                if key not in own:
                    raise TypeError(f"from_config: no parameter {key!r} (got {value!r}); allowed: {', '.join(own)}")
            if isinstance(config, Mapping) and not {"rules", "steps"}.isdisjoint(config):
                return compressor(policy_of(config), **keywords)
            for name in ("none", "fp16"):
                if config == name or config == {"name": name}:
                    return getattr(cls, name)
            chosen = config.partition(":")[0].strip() if isinstance(config, str) else config.get("name")
            if chosen in ("none", "fp16"):
                raise TypeError(f"{chosen} is Horovod's own and takes no parameters, got {config!r}")
            known = sorted({"fp16", *names, "none"})
            if isinstance(chosen, str) and chosen not in known:
                raise ValueError(f"compression must be one of {', '.join(known)}, got {config!r}")
            return compressor(compose_config(config), **keywords)

        parameters = [
            inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in own),
        ]
        from_config.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        cls.from_config = staticmethod(from_config)  # type: ignore[attr-defined]

        def by_rule(
            rules: Sequence[Mapping[str, Any]], default: Mapping[str, Any] | str = "none", **keywords: Any
        ) -> Any:
            """Make a compressor that chooses the codec of each tensor by its name and size.

            Parameters
            ----------
            rules : list of mapping
                Each with a ``codec`` (as for `from_config`) and what its tensors are like: ``name``, a pattern such as
                ``"layer1.*"``, ``min_elements``, ``max_elements``, ``min_ndim``, ``max_ndim``. The first that fits
                wins.
            default : str or mapping
                Codec of all other tensors.

            Raises
            ------
            TypeError, ValueError
                As `from_config`; also for codecs with momentum among others without.
            """
            return from_config({"rules": rules, "default": default}, **keywords)

        def by_step(steps: Mapping[int, Any] | Sequence[Any], **keywords: Any) -> Any:
            """Make a compressor that goes over from one codec to the next at given optimizer steps.

            What is unsent goes along, or is delivered in one dense exchange.

            Parameters
            ----------
            steps : mapping
                Step -> config as for `from_config`, such as ``{0: "none", 1000: "topk:density=0.1"}``.

            Raises
            ------
            TypeError, ValueError
                As `from_config`; also if the first step is not 0, or for codecs with momentum among others without.
            """
            pairs = sorted(steps.items()) if isinstance(steps, Mapping) else steps
            return from_config({"steps": pairs}, **keywords)

        cls.by_rule, cls.by_step = staticmethod(by_rule), staticmethod(by_step)  # type: ignore[attr-defined]
        for name in names:
            setattr(cls, name, staticmethod(_factory(name, compressor, own)))
        return cls

    return decorate


def _factory(name: str, compressor: Callable[..., Any], own: tuple[str, ...]) -> Callable[..., Any]:
    cls = codec_class(name)
    declared = {key: field.default for key, (_, field) in parameters_of(cls).items()}
    defaults = {**declared, **wrapper_defaults(cls()), **dict.fromkeys(own)}
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

    def make(*positional: Any, **parameters: Any) -> Any:
        if len(positional) > len(declared):
            raise TypeError(f"{cls.__name__}: {len(positional)} values without a name; allowed: {', '.join(declared)}")
        for key, value in zip(declared, positional, strict=False):
            if key in parameters:
                raise TypeError(f"{cls.__name__}: {key} must be given once, got {value!r} and {parameters[key]!r}")
            parameters[key] = value
        keywords = {key: parameters.pop(key) for key in own if key in parameters}
        return compressor(compose(name, **parameters), **keywords)

    def compress(tensor: Any) -> Any:
        raise TypeError(f"compression must be a compressor, got the method {name}: call it, Compression.{name}()")

    make.__name__ = make.__qualname__ = name
    make.__doc__ = _documentation(name, defaults, compressor, own)
    make.__signature__ = signature  # type: ignore[attr-defined]
    # Horovod asks what it is given for this.
    make.compress = compress  # type: ignore[attr-defined]
    return make


def _documentation(name: str, defaults: Mapping[str, Any], compressor: Callable[..., Any], own: tuple[str, ...]) -> str:
    cls = codec_class(name)
    known = {key: parameter for key, (parameter, _) in parameters_of(cls).items()} | wrapper_parameters()
    lines = [f"{inspect.getdoc(cls)}", "", "This method makes a compressor of it for Horovod and takes", ""]
    for key in defaults:
        if key in known:
            lines.append(f"{key} : {known[key].allowed}\n    {known[key].meaning[0].upper()}{known[key].meaning[1:]}.")
    lines.append(f"{', '.join(own)}\n    See `{compressor.__module__.rpartition('.')[0]}.{compressor.__name__}`.")
    return "\n".join(lines)
