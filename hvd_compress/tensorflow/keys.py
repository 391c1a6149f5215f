"""Tensors to keys that are equal on every rank and in every trace."""

from __future__ import annotations

import re
import warnings
import weakref
import zlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_compress.payload import TensorSpec
from hvd_compress.tensorflow.caller import Caller

__all__ = ["Keys", "Place"]


class Place(NamedTuple):
    """Where a tensor belongs.

    Attributes
    ----------
    key : str
        Keys the state: the variable's position in the model, or the name of the call.
    name : str
        The variable's, or that of the call, for rules.
    title : str
        The variable's name and position, for people.
    spec : TensorSpec
    turn : int
        How many tensors of that key the graph had before.
    """

    key: str
    name: str
    title: str
    spec: TensorSpec
    turn: int

    @property
    def operation(self) -> str:
        """Name for an operation of this tensor."""
        name = re.sub("[^A-Za-z0-9_]", "_", self.key)
        number = f"_{zlib.crc32(self.key.encode('utf-8')):08x}" if name != self.key else ""
        return f"{name}{number}" + (f"_{self.turn}" if self.turn else "")


class Keys:
    """Keys of all that one compressor is used for: one model's variables, and calls by name.

    A key is the variable's position, because Keras numbers the names of layers by what else a process has built.
    """

    def __init__(self) -> None:
        self._variables: list[_Identity] = []
        self._dense: list[bool] = []
        self._specs: dict[str, TensorSpec] = {}
        self._turns: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()

    def locate(self, tensor: tf.Tensor, caller: Caller) -> Place:
        """Return the place of a tensor.

        Raises
        ------
        ValueError
            If the variables, the set of them that have gradients, their order or a shape is not what it was in the
            first trace, or a shape is not known; the message names the variable.
        """
        if caller.variables is None:
            key, name, title, shape = f"call/{caller.name}", caller.name, caller.name, tensor.shape
        else:
            self._compare(caller.variables, caller.gradients)
            variable = caller.variables[caller.position]
            key, name, title = str(caller.position), _title(variable, None), _title(variable, caller.position)
            # A gradient that was sparse does not know its own shape.
            shape = tensor.shape.merge_with(variable.shape)
        if not shape.is_fully_defined():
            raise ValueError(f"{title}: the shape must be known where the function is traced, got {shape}")
        spec = TensorSpec(tuple(shape.as_list()), tensor.dtype.name)
        known = self._specs.setdefault(key, spec)
        if known != spec:
            raise ValueError(f"{title}: was {known} until now, got {spec}; {_RULE}")
        return Place(key, name, title, spec, self._turn(key))

    def compare_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ``ValueError`` if a key is known with another shape than here; the message names it."""
        for key, shape in shapes.items():
            known = self._specs.get(key)
            if known is not None and known.shape != shape:
                title = self._variables[int(key)].title(int(key)) if key.isdigit() else key
                raise ValueError(f"{title}: the saved state is for shape {shape}, this model has {known.shape}")

    def _compare(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        dense = [tf.is_tensor(gradient) for gradient in gradients]
        if not self._variables:
            self._variables, self._dense = [_Identity(variable) for variable in variables], dense
            _enrol(variables[0])
        for position, (known, variable) in enumerate(zip_longest(self._variables, variables)):
            if known is None or variable is None or not known.same(variable):
                ours = "nothing" if known is None else known.title(position)
                theirs = "nothing" if variable is None else _title(variable, position)
                raise ValueError(f"{theirs}: until now there was {ours} in this place; {_RULE}")
        # Where gradients are added up over several passes, Horovod leaves out those that are None.
        for position, (had, has) in enumerate(zip(self._dense, dense, strict=False)):
            if had != has:
                title = _title(variables[position], position)
                change = "a dense gradient until now and has none" if had else "no dense gradient until now and has one"
                raise ValueError(f"{title}: had {change}; {_RULE}")

    def _turn(self, key: str) -> int:
        if tf.executing_eagerly():
            return 0
        graph = tf.compat.v1.get_default_graph()
        # Horovod's own branch is traced anew with its function, and counted with it.
        while "Branch" in type(graph).__name__:
            graph = graph.outer_graph
        turns = self._turns.setdefault(graph, {})
        turns[key] = turns.get(key, -1) + 1
        return turns[key]


_RULE = "a compressor belongs to one model and always the same gradients of it: make another one, or clone() this one"


_enrolled: dict[int, weakref.ref[Any]] = {}
_warned = False


def _enrol(variable: Any) -> None:
    """Warn once if another compressor had the model of this variable, its first one, before."""
    global _warned
    if not _is_variable(variable):
        return
    known = _enrolled.get(id(variable))
    if known is not None and known() is variable and not _warned:
        _warned = True
        warnings.warn(
            f"a second compressor for the same variables, {_title(variable, 0)} among them: what the first one kept "
            "for its next step is lost; make the compressor once, not in every step",
            stacklevel=2,
        )
    _enrolled[id(variable)] = weakref.ref(variable)


class _Identity:
    """Remembers which variable it was, without keeping it alive; of a tensor only where it stood."""

    def __init__(self, variable: Any) -> None:
        self._name = _title(variable, None)
        self._reference = weakref.ref(variable) if _is_variable(variable) else None

    def same(self, variable: Any) -> bool:
        """Whether it is this one, or may be."""
        return self._reference is None or not _is_variable(variable) or self._reference() is variable

    def title(self, position: int) -> str:
        """Name and position."""
        return f"{self._name} (variable {position})"


def _is_variable(value: Any) -> bool:
    """Whether it is a variable, and not what stands for any variable while a model is saved."""
    if not isinstance(value, tf.Variable):
        return hasattr(value, "assign")
    handle: Any = getattr(value, "handle", None)
    return not (tf.is_symbolic_tensor(handle) and handle.op.type == "Placeholder")


def _title(variable: Any, position: int | None) -> str:
    name = getattr(variable, "path", None) or getattr(variable, "name", None) if _is_variable(variable) else "a tensor"
    return str(name) if position is None else f"{name} (variable {position})"
