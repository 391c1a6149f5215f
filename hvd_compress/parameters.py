"""Declared hyper-parameters: each is a dataclass field that knows its default, its kind and its range.

One declaration serves the constructor's checks, config strings and ``python -m hvd_compress list``.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from itertools import pairwise
from typing import Any

__all__ = [
    "Parameter",
    "check_parameters",
    "checked",
    "choice",
    "falling",
    "flag",
    "integer",
    "nested",
    "parameters_of",
    "real",
]

_KEY = "hvd_compress.parameter"


@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter as users see it.

    Attributes
    ----------
    kind : str
        ``"number"``, ``"integer"``, ``"boolean"``, ``"string"``, ``"list"`` or ``"codec"``.
    allowed : str
        What may be passed, in words that finish "must be ...".
    meaning : str
        One line for the listing.
    convert : callable
        Value -> normalised value; raises ``TypeError`` for a wrong kind, ``ValueError`` for a wrong value.
    low, high : float, optional
        Ends of a number's interval, whether they belong to it or not. None: there is none, or it has no end.
    """

    kind: str
    allowed: str
    meaning: str
    convert: Callable[[Any], Any]
    low: float | None = None
    high: float | None = None


def _declare(default: Any, parameter: Parameter) -> Any:
    return field(default=default, metadata={_KEY: parameter})


def real(
    default: float | None,
    low: float,
    high: float,
    meaning: str,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> Any:
    """Declare a real number in an interval, bounds included unless open; or None where that is the default."""
    allowed = f"a number in {'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    allowed += " or null" if default is None else ""

    def convert(value: Any) -> float | None:
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError
        number = float(value)
        above = number > low if low_open else number >= low
        below = number < high if high_open else number <= high
        if not (math.isfinite(number) and above and below):
            raise ValueError
        return number

    return _declare(default, Parameter("number", allowed, meaning, convert, low, high))


def integer(default: int | None, low: int, meaning: str, high: int | None = None) -> Any:
    """Declare an integer of at least `low` and, when given, at most `high`; or None where that is the default."""
    allowed = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    allowed += " or null" if default is None else ""

    def convert(value: Any) -> int | None:
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError
        number = int(value)
        if number < low or (high is not None and number > high):
            raise ValueError
        return number

    return _declare(default, Parameter("integer", allowed, meaning, convert, low, high))


def choice(default: str, options: tuple[str, ...], meaning: str) -> Any:
    """Declare one of a few strings."""
    allowed = "one of " + ", ".join(repr(option) for option in options)

    def convert(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        if value not in options:
            raise ValueError
        return value

    return _declare(default, Parameter("string", allowed, meaning, convert))


def flag(default: bool, meaning: str) -> Any:
    """Declare a boolean."""

    def convert(value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError
        return value

    return _declare(default, Parameter("boolean", "true or false", meaning, convert))


def falling(default: tuple[float, ...], meaning: str) -> Any:
    """Declare a list of falling numbers in (0, 1]."""

    def convert(value: Any) -> tuple[float, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError
        if any(isinstance(number, bool) or not isinstance(number, numbers.Real) for number in value):
            raise TypeError
        densities = tuple(float(number) for number in value)
        if not densities or not all(0 < number <= 1 for number in densities):
            raise ValueError
        if any(later >= earlier for earlier, later in pairwise(densities)):
            raise ValueError
        return densities

    return _declare(default, Parameter("list", "a list of falling numbers in (0, 1]", meaning, convert))


def nested(kind: type, meaning: str) -> Any:
    """Declare a field that holds another codec; it has no default."""

    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return field(metadata={_KEY: Parameter("codec", "a codec", meaning, convert)})


def parameters_of(owner: Any) -> dict[str, tuple[Parameter, Field[Any]]]:
    """Name -> (parameter, dataclass field) of a class or an instance, in order of declaration."""
    return {item.name: (item.metadata[_KEY], item) for item in fields(owner) if _KEY in item.metadata}


def checked(owner: str, name: str, parameter: Parameter, value: Any) -> Any:
    """Return the normalised value, or raise naming owner, parameter, value and what is allowed."""
    try:
        return parameter.convert(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{owner}: {name} must be {parameter.allowed}, got {value!r}") from None


def check_parameters(instance: Any) -> None:
    """Check and normalise every declared parameter of a frozen dataclass instance.

    Raises
    ------
    TypeError, ValueError
        Wrong kind, wrong value; the message names class, parameter, value and what is allowed.
    """
    for name, (parameter, _) in parameters_of(instance).items():
        value = checked(type(instance).__name__, name, parameter, getattr(instance, name))
        object.__setattr__(instance, name, value)
