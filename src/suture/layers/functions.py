"""Functions that data may name: those that a graph which is read from a file may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_functions: dict[str, Callable[..., Any]] = {}


def register_function(function: F) -> F:
    """Lets a function be a step of a graph that is saved and read again, under its own name.

    What it is called with, beside tensors, is plain data.

    Raises:
        ValueError: Another function has the name.

    Example:
        >>> @register_function
        ... def doubled(x):
        ...     return 2 * x
        >>> function_of("doubled")(3), name_of(doubled)
        (6, 'doubled')
    """
    name = function.__name__
    known = _functions.get(name, function)
    if (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
        raise ValueError(
            f"The name {name!r} is that of {known.__module__}.{known.__qualname__}. Give "
            f"{function.__module__}.{function.__qualname__} another."
        )
    _functions[name] = function
    return function


def function_of(name: str) -> Callable[..., Any] | None:
    """The function that is registered under a name."""
    return _functions.get(name)


def name_of(function: Callable[..., Any]) -> str | None:
    """The name under which a function is registered."""
    name = getattr(function, "__name__", "")
    return name if _functions.get(name) is function else None
