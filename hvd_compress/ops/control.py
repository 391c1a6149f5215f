"""What depends on the values of arrays: branches, checks, and functions that look at numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self, TypeVar

__all__ = ["Array", "Control", "Output"]

Array = Any
Output = tuple[str, tuple[int | None, ...]]
"""dtype and shape of an array."""
T = TypeVar("T")


class Control(ABC):
    """How a framework decides by values that it may not know yet.

    A graph that is traced has none. A device has them later: a host that reads one waits until all the work that was
    handed to the device before is done.
    """

    waits: ClassVar[bool] = False
    """Whether to read a value means to wait for a device, so that an encoder had better do without."""

    def quiet(self) -> AbstractContextManager[Any]:
        """Context in which arithmetic that overflows gives inf or NaN without a warning."""
        return nullcontext()

    def run_eagerly(
        self, function: Callable[..., Sequence[Array]], arguments: Sequence[Array], outputs: Sequence[Output]
    ) -> Sequence[Array]:
        """Call ``function(ops, *arguments)``, which branches on values; it may read them with `integer` and `to_list`.

        `outputs` says dtype and shape of each array that it returns, with None for a size that depends on the values:
        a framework that traces calls the function when the graph runs. The operations that the function gets, and
        their arrays, may be those of another framework. It must not overwrite the arguments.
        """
        return function(self, *arguments)

    @abstractmethod
    def cond(self, predicate: Array, then: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """What one of two functions returns, by a 0-d boolean array.

        Both may be run, so neither may overwrite what the other returns; what they return has the same shapes.
        """

    def branch(self, predicate: Array, then: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Run one of two functions by a 0-d boolean array, and not the other."""
        return self.cond(predicate, then, otherwise)

    @abstractmethod
    def require(self, predicate: Array, message: Any, guarded: Array = None) -> Array:
        """Raise ``ValueError(message)`` unless a 0-d boolean array or a boolean holds; return `guarded`.

        A framework that traces raises an error of its own when the graph runs, before it computes anything of what is
        returned.
        """

    def trusting(self) -> Self:
        """The operations for what this rank has encoded itself: they may leave out what `require` checks."""
        return self

    def attempt(self, function: Callable[[Self], T | None]) -> T | None:
        """``function(ops)``; where one of its requirements does not hold, None or ``ValueError``.

        A device may look at all requirements together, when the function has returned: until then it works with
        whatever it has been given.
        """
        return function(self)

    def text(self, template: str, *values: Any) -> Any:
        """Message for `require`, with integers that may be symbolic in the place of each ``{}``."""
        return template.format(*values)
