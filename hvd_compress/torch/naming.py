"""Tensors to names that are equal on every rank, and optimizers to groups whose state must not mix."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from hvd_compress.torch.caller import Caller

__all__ = ["Group", "Names"]


class Group:
    """The tensors that are exchanged together: an optimizer's parameters, or one ``hvd.allreduce``.

    Attributes
    ----------
    prefix : str
        Put before the names of this group's tensors wherever groups must not mix.
    names : dict
        Parameter -> name. Empty for ``hvd.allreduce``.
    keys : set of str
        Names with the prefix.
    """

    def __init__(self, prefix: str, names: dict[torch.Tensor, str]) -> None:
        self.prefix = prefix
        self.names: dict[torch.Tensor, str] = {}
        self.keys: set[str] = set()
        self._order: list[torch.Tensor] = []
        self._next = 0
        self.include(names)

    def include(self, names: dict[torch.Tensor, str]) -> None:
        """Add parameters, or rename them."""
        # Backward passes reach the last layers first; after one step the order is the observed one.
        self._order += [parameter for parameter in reversed(names) if parameter not in self.names]
        self.names.update(names)
        self.keys.update(self.prefix + name for name in names.values())

    def name_of(self, gradient: torch.Tensor, hint: torch.Tensor | None) -> str:
        """Name of the parameter whose gradient this is; `hint` is believed where none has it (a dense copy)."""
        parameter = self._order[self._next]
        if parameter.grad is not gradient:
            position = next((i for i, other in enumerate(self._order) if other.grad is gradient), None)
            if position is None:
                if hint is None or hint not in self.names:
                    raise ValueError(f"no parameter has this gradient of shape {tuple(gradient.shape)}")
                return self.names[hint]
            parameter = self._order.pop(position)
            self._order.insert(self._next, parameter)
        self._next = (self._next + 1) % len(self._order)
        return self.names[parameter]


class Names:
    """Names and groups of everything that one compressor is used for.

    Two optimizers may have parameters of the same name. The second one gets an ordinal, by the order of first use,
    which is the same on all ranks of a process set. An optimizer that is wrapped anew belongs to the group of its
    parameters.

    Parameters
    ----------
    named_parameters : iterable of (str, torch.Tensor), optional
        Names to use instead of those that Horovod's optimizer has.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, torch.Tensor]] | None) -> None:
        self._given = {} if named_parameters is None else {parameter: name for name, parameter in named_parameters}
        self._groups: dict[int, list[Group]] = {}
        self._calls: dict[str, Group] = {}
        self._optimizers: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()

    def locate(self, gradient: torch.Tensor, caller: Caller) -> tuple[Group, str]:
        """Return the group and the name of a tensor."""
        if caller.optimizer is None:
            prefix = f"{_set_prefix(caller)}call/"
            group = self._calls.setdefault(prefix + caller.name, Group(prefix, {}))
            group.keys.add(prefix + caller.name)
            return group, caller.name
        known = self._optimizers.get(caller.optimizer)
        if known is None:
            known = self._optimizers[caller.optimizer] = self._enrol(caller)
        return known, known.name_of(gradient, caller.parameter)

    def group_of(self, optimizer: Any) -> Group | None:
        """Return the group of an optimizer, if any of its gradients was located."""
        return None if optimizer is None else self._optimizers.get(optimizer)

    def _enrol(self, caller: Caller) -> Group:
        own: dict[torch.Tensor, str] = caller.optimizer._parameter_names
        names = {parameter: self._given.get(parameter, name) for parameter, name in own.items()}
        groups = self._groups.setdefault(caller.process_set.process_set_id, [])
        for group in groups:
            if not names.keys().isdisjoint(group.names):
                group.include(names)
                return group
        ordinal = sum(not set(names.values()).isdisjoint(group.names.values()) for group in groups)
        groups.append(Group(_set_prefix(caller) + (f"{ordinal}/" if ordinal else ""), names))
        return groups[-1]


def _set_prefix(caller: Caller) -> str:
    number = caller.process_set.process_set_id
    return f"set{number}/" if number else ""
