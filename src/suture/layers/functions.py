"""Functions that data may name: those that a graph which is read from a file may call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

_functions: dict[str, Callable[..., Any]] = {}
_names: dict[Callable[..., Any], str] = {}


@overload
def register_function(function: F, /) -> F: ...
@overload
def register_function(function: str, /) -> Callable[[F], F]: ...
def register_function(function: Any, /) -> Any:
    """Lets a function be a step of a graph that is saved, under its own name or the one given.

    What it is called with, beside tensors, is plain data.

    Raises:
        ValueError: Another function has the name.

    Example:
        >>> @register_function("docs.doubled")
        ... def doubled(x):
        ...     return 2 * x
        >>> function_of("docs.doubled")(3), name_of(doubled)
        (6, 'docs.doubled')
    """
    if isinstance(function, str):
        return functools.partial(_register, name=function)
    return _register(function, function.__name__)


def function_of(name: str) -> Callable[..., Any] | None:
    """The function that is registered under a name."""
    return _functions.get(name)


def name_of(function: Callable[..., Any]) -> str | None:
    """The name under which a function is registered."""
    return _names.get(function)


def _register(function: F, name: str) -> F:
    known = _functions.get(name, function)
    if (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
        raise ValueError(
            f"The name {name!r} is that of {known.__module__}.{known.__qualname__}. Register "
            f'{function.__module__}.{function.__qualname__} under another: @suture.register_function("another name").'
        )
    _functions[name] = function
    _names[function] = name
    return function
