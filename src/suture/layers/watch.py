"""Watching every layer call of a model for a while, with the place where it happens."""

from __future__ import annotations

import inspect
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from torch import nn

from suture.layers.composite import Composite
from suture.layers.location import describe
from suture.layers.places import places_in

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass
class Call:
    """One call of a layer: at which path, with what, and what it returned (None while it runs)."""

    path: str
    layer: nn.Module
    key: int
    """Of the place: the identity of the slot, or of the layer where a plain module calls it."""
    args: tuple[Any, ...]
    output: Any = None
    inside: Counter[int] = field(default_factory=Counter[int], repr=False)
    """How often it has called each layer so far."""


class Watch:
    """A block in which the layer calls of `model` are noted, and refused where the number of arguments is wrong.

    >>> from suture import layers as sl
    >>> model = sl.Chain(sl.Identity(), sl.Sum(sl.Identity(), sl.Lambda(abs)))
    >>> with Watch(model) as watch:
    ...     model(-1)
    0
    >>> [(call.path, call.output) for call in watch.calls][2:]
    [('Sum', 0), ('Sum.Identity', -1), ('Sum.Lambda', 1)]
    """

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[Call] = []
        self._running: list[Call] = []
        self._paths = {id(model): ""}
        modules = {id(module): module for module in model.modules()}
        for place in places_in(model):
            self._paths.setdefault(id(place.layer if place.slot is None else place.slot), place.path)
            modules |= {id(module): module for module in place.layer.modules()}
        self.modules = tuple(modules.values())
        self._hooks = ExitStack()

    @property
    def failing(self) -> Call | None:
        """After an exception, the innermost call that did not end."""
        return self._running[-1] if self._running else None

    def __enter__(self) -> Self:
        for module in self.modules:
            self._hooks.enter_context(module.register_forward_pre_hook(self._begin, with_kwargs=True))
            self._hooks.enter_context(module.register_forward_hook(self._end))
        return self

    def __exit__(self, *exception: object) -> None:
        self._hooks.close()

    def _begin(self, layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        caller = self._running[-1] if self._running else None
        key = id(layer) if caller is None else _place(caller, layer)
        path = self._paths.get(key, "" if caller is None else caller.path)
        call = Call(path, layer, key, args)
        self.calls.append(call)
        self._running.append(call)
        _check_arguments(layer, args, keywords, spread=caller is not None and isinstance(caller.layer, Composite))

    def _end(self, layer: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        # A layer may have caught the exception of one that it called, which then never ended.
        while (call := self._running.pop()).layer is not layer:
            pass
        call.output = output


def _place(caller: Call, layer: nn.Module) -> int:
    """Where the caller calls a layer: at the next of the slots that hold it, or under a name of a plain module."""
    slots = caller.layer.node.slots_of(layer) if isinstance(caller.layer, Composite) else []
    number = caller.inside[id(layer)]
    caller.inside[id(layer)] += 1
    return id(slots[number % len(slots)]) if slots else id(layer)


def _check_arguments(layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], spread: bool) -> None:
    try:
        signature = inspect.signature(layer.forward)
    except (TypeError, ValueError):
        return  # written in C
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = [
            each for each in signature.parameters.values() if each.kind in positional and each.name not in keywords
        ]
        needed = [each for each in taken if each.default is inspect.Parameter.empty]
        if len(needed) <= len(args) <= len(taken):
            raise
        names = ", ".join(each.name for each in taken)
        count = str(len(taken)) if len(needed) == len(taken) else f"{len(needed)} to {len(taken)}"
        received = f"received {len(args)}{': ' if args else ''}{', '.join(map(describe, args))}."
        raise TypeError(
            f"{type(layer).__name__} takes {count} argument{'s' * (count != '1')}"
            f"{f' ({names})' if names else ''}; {received}{_advice(len(args) > len(taken)) if spread else ''}"
        ) from error


def _advice(too_many: bool) -> str:
    if too_many:
        return (
            " A tuple is spread over the arguments of the next layer: choose one of them with sl.GetArg, "
            "or give each a layer of its own with sl.Distribute."
        )
    return " As many arguments arrive as the layer before returns: several branches in an sl.Parallel return several."
