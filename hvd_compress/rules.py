"""Policies that choose by more than size: by a tensor's name, and by the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from hvd_compress.codec import Codec
from hvd_compress.codecs.none import Dense
from hvd_compress.parameters import check_parameters, integer
from hvd_compress.payload import TensorSpec
from hvd_compress.policy import BySize, Policy, compose_config
from hvd_compress.registry import reject_unknown

__all__ = ["ByRule", "ByStep", "Rule", "policy_of"]

Config = Mapping[str, Any] | str
_MANY = 2**63 - 1


@dataclass(frozen=True)
class Rule:
    """Which tensors a policy is for: those that fit in every respect.

    Parameters
    ----------
    policy : BySize
        Small tensors go dense here too, unless the codec's `min_elements` and `min_ndim` say otherwise.
    name : str
        Pattern of the parameter's name, with ``*``, ``?`` and ``[...]``.
    min_elements, max_elements, min_ndim, max_ndim : int
        Entries and dimensions, ends included.
    """

    policy: BySize
    name: str = "*"
    min_elements: int = integer(0, 0, "fewest entries")
    max_elements: int = integer(_MANY, 0, "most entries")
    min_ndim: int = integer(0, 0, "fewest dimensions")
    max_ndim: int = integer(_MANY, 0, "most dimensions")

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"Rule: name must be a pattern such as 'layer1.*', got {self.name!r}")
        check_parameters(self)

    def fits(self, name: str, spec: TensorSpec) -> bool:
        """Whether a tensor is one of those that the rule is for."""
        return (
            fnmatchcase(name, self.name)
            and self.min_elements <= spec.numel <= self.max_elements
            and self.min_ndim <= len(spec.shape) <= self.max_ndim
        )

    @property
    def config(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"codec": self.policy.config} | {
            field.name: getattr(self, field.name) for field in fields(self) if field.name != "policy"
        }


@dataclass(frozen=True)
class ByRule:
    """The first rule that fits a tensor chooses its codec, else the default.

    Where the default is a codec with momentum, tensors that go dense by a rule get the momentum after the reduction.
    """

    rules: tuple[Rule, ...]
    default: BySize

    def __post_init__(self) -> None:
        codecs = [rule.policy.codec for rule in self.rules if type(rule.policy.codec) is not Dense]
        _require_one_momentum([*codecs, self.default.codec])

    @property
    def codec(self) -> Codec:
        """The default's."""
        return self.default.codec

    @property
    def config(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"rules": [rule.config for rule in self.rules], "default": self.default.config}

    def at_step(self, step: int) -> Policy:
        """The same at every step."""
        return self

    def for_tensor(self, name: str, spec: TensorSpec) -> Codec:
        """Return the codec for one tensor."""
        policy = next((rule.policy for rule in self.rules if rule.fits(name, spec)), self.default)
        codec = policy.for_tensor(name, spec)
        return self.default.codec.companion or codec if type(codec) is Dense else codec


@dataclass(frozen=True)
class ByStep:
    """One policy after the other, each from an optimizer step of its own on."""

    phases: tuple[tuple[int, Policy], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.phases]
        if not starts or starts[0] != 0 or any(later <= earlier for earlier, later in pairwise(starts)):
            raise ValueError(f"steps must begin with 0 and rise, got {starts}")
        if len({policy.codec.has_momentum for _, policy in self.phases}) > 1:
            raise ValueError("steps must not mix codecs that apply momentum with others: the optimizer has one setting")

    @property
    def codec(self) -> Codec:
        """The first one."""
        return self.phases[0][1].codec

    @property
    def config(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"steps": [[start, policy.config] for start, policy in self.phases]}

    def at_step(self, step: int) -> Policy:
        """Return the policy of one step; all ranks count the same steps."""
        return [policy for start, policy in self.phases if start <= step][-1].at_step(step)

    def for_tensor(self, name: str, spec: TensorSpec) -> Codec:
        """Return the codec that a tensor begins with."""
        return self.at_step(0).for_tensor(name, spec)


def policy_of(config: Config) -> Policy:
    """Read what ``Compression.from_config`` takes.

    Parameters
    ----------
    config : str or mapping
        A codec, as for `compose_config`; or ``{"rules": [{"name": "*.bias", "codec": config}, ...], "default":
        config}``; or ``{"steps": [[0, config], [1000, config], ...]}``.

    Raises
    ------
    TypeError, ValueError
        As `compose_config`; also for a rule or a list of steps of another form.

    Examples
    --------
    >>> policy = policy_of({"rules": [{"name": "emb*", "codec": "topk:density=0.001"}], "default": "none"})
    >>> policy.for_tensor("embedding", TensorSpec((1000, 100), "float32")).inner.density
    0.001
    """
    if isinstance(config, Mapping) and "rules" in config:
        reject_unknown("rules", config, dict.fromkeys(("rules", "default")))
        if "default" not in config:
            raise ValueError(f"rules must come with a 'default' for all other tensors, got {dict(config)!r}")
        return ByRule(tuple(map(_rule, _list("rules", config["rules"]))), compose_config(config["default"]))
    if isinstance(config, Mapping) and "steps" in config:
        reject_unknown("steps", config, {"steps": None})
        return ByStep(tuple(map(_phase, _list("steps", config["steps"]))))
    return compose_config(config)


def _list(what: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{what} must be a list, got {value!r}")
    return value


def _rule(config: Any) -> Rule:
    if not isinstance(config, Mapping) or "codec" not in config:
        raise ValueError(f"rules must be mappings with a 'codec', got {config!r}")
    known = ["codec", *(field.name for field in fields(Rule) if field.name != "policy")]
    reject_unknown("rules", config, dict.fromkeys(known))
    return Rule(compose_config(config["codec"]), **{key: value for key, value in config.items() if key != "codec"})


def _phase(pair: Any) -> tuple[int, Policy]:
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2 or type(pair[0]) is not int:
        raise ValueError(f"steps must be pairs of a step and a config, got {pair!r}")
    return pair[0], policy_of(pair[1])


def _require_one_momentum(codecs: Sequence[Codec]) -> None:
    if len({codec.has_momentum for codec in codecs}) > 1:
        names = ", ".join(sorted({type(codec).__name__ for codec in codecs}))
        raise ValueError(f"rules must not mix codecs that apply momentum with others, got {names}")
