"""Values that stand for results while a graph is made, as far as layers need to know of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

from torch import nn

from suture.layers.frames import call_module, frame_for, looking_at_plain_calls


class Symbolic:
    """A value of a graph that is being made. What is called with one becomes a part of that graph."""

    # No abstract class: to type checkers its kinds are tensors, which have a metaclass of their own.
    def call(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of calling `target`, a layer or a function, as a symbolic value, or a structure of such."""
        raise NotImplementedError


class SymbolicCall(nn.Module):
    """A layer that can be called with symbolic values, or stood in for, by itself; a tree sees to that for its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (frame := frame_for(self)) is not None:
            return frame.call(args, kwargs)
        value = symbolic_in((*args, *kwargs.values()))
        return call_module(self, *args, **kwargs) if value is None else value.call(self, args, kwargs)


class TakesContext(SymbolicCall):
    """A layer that is no composite, and takes a context as one does when it is called from outside of a tree."""


def _seen_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return SymbolicCall.__call__(module, *args, **kwargs)  # pyright: ignore[reportArgumentType]


def seeing_plain_calls() -> AbstractContextManager[None]:
    """Has plain torch modules looked at in a block as `SymbolicCall` is, which cannot be told so from outside."""
    return looking_at_plain_calls(_seen_call)


def symbolic_in(values: Iterable[Any]) -> Symbolic | None:
    """A symbolic value among `values`, or in the tuples, lists and dictionaries among them."""
    for value in values:
        if isinstance(value, Symbolic):
            return value
        if isinstance(value, tuple | list | dict):
            inner = cast("Any", value.values() if isinstance(value, dict) else value)
            if (found := symbolic_in(inner)) is not None:
                return found
    return None


def step(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function; with symbolic values it is one step of the graph, whatever it does."""
    value = symbolic_in((*args, *kwargs.values()))
    return function(*args, **kwargs) if value is None else value.call(function, args, kwargs)


def inner_call(layer: nn.Module) -> Callable[..., Any]:
    """What a tree calls for one of its leaves: past what is there for calls from outside."""
    own: Any = TakesContext.__call__ if isinstance(layer, TakesContext) else type(layer).__call__
    known = (call_module, SymbolicCall.__call__, _seen_call)
    return partial(call_module, layer) if own in known else layer.__call__
