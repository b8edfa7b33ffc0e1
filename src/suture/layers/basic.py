"""The small leaves that direct the flow of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from suture.layers.context import REQUIRED, Read
from suture.layers.symbolic import SymbolicCall


class Identity(nn.Identity, SymbolicCall):
    """Returns what it receives, of several arguments their tuple.

    >>> Identity()(1), Identity()(1, 2)
    (1, (1, 2))
    """

    # Several arguments pass too, where torch's own takes one.
    def forward(self, *args: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return args[0] if len(args) == 1 else args


class Lambda(SymbolicCall):
    """Calls a function with the arguments that it receives, and returns what that returns.

    A function has no weights, no name in a recipe, and is pickled by its name: what is to be saved is a layer of its
    own. Raises `TypeError` for what cannot be called.

    >>> Lambda(abs)(-1)
    1
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(function):
            raise TypeError(f"Lambda takes a function. Received: {function!r:.80}.")
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


class GetArg(SymbolicCall):
    """Returns one of its arguments. Raises `IndexError` when there are not as many.

    >>> GetArg(1)("x", "y")
    'y'
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, *args: Any) -> Any:
        if not -len(args) <= self.index < len(args):
            raise IndexError(f"GetArg({self.index}) was called with {len(args)} arguments.")
        return args[self.index]

    def extra_repr(self) -> str:
        return str(self.index)


class UseContext(SymbolicCall):
    """Returns the entry `key` of the scope `context`, whatever it is called with.

    Raises `MissingContextError` when the entry was not given and has no default.

    >>> from suture import layers as sl
    >>> sl.Chain(UseContext("side", "x", default=0))(5)
    0
    """

    def __init__(self, context: str, key: str, default: Any = REQUIRED) -> None:
        super().__init__()
        self.reads = {"value": Read(context, key, default)}

    def forward(self, *args: Any, value: Any) -> Any:
        return value

    def extra_repr(self) -> str:
        return self.reads["value"].identity
