"""Call functions, and how the call of a layer inside one finds its way back.

A call function `call(layer, *args, **kwargs)` stands in for the calls of a layer. In it, `layer(*args, **kwargs)` is
what was stood in for. So while one runs, a frame takes the calls of that layer, and plain torch modules, which know
nothing of this, are looked at as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn

CallFunction = Callable[..., Any]
"""`call(layer, *args, **kwargs)`: what happens where a layer is called. `layer(*args, **kwargs)` is what happened."""

call_module: Callable[..., Any] = nn.Module.__call__
"""torch's own call of a module, whatever is looking on at the moment."""


class Frame(Protocol):
    """What a running call function stands in for."""

    def takes(self, layer: object) -> bool:
        """Whether the call of `layer` is for it."""
        ...

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls its layer."""
        ...


def refuse_other_context(layer: nn.Module, given: Any, keywords: dict[str, Any]) -> None:
    """Refuses another context than `given` where a call function calls a composite, which has that of its place."""
    others = [name for name, value in keywords.items() if value is not None and value is not given]
    if others:
        raise TypeError(
            f"{type(layer).__name__} was called with {others[0]}=... of its own in a call function. A composite has "
            f"the context of its place: pass on the keywords that the call function received, or none. What a single "
            f"layer reads from the context are its keywords, which may be others."
        )


_frame: ContextVar[Frame | None] = ContextVar("frame", default=None)
_lock = threading.Lock()


class _Looking:
    """In how many blocks, of all threads, calls are looked at."""

    blocks = 0


def frame_for(layer: nn.Module) -> Frame | None:
    """The frame that takes the call of `layer`, if a call function that stands in for it is running."""
    # Compiled code cannot read a context variable; `interceptor` refuses what it would miss.
    if torch.compiler.is_compiling() or not _Looking.blocks:
        return None
    frame = _frame.get()
    return frame if frame is not None and frame.takes(layer) else None


def current_frame() -> Frame | None:
    """The frame of the call function that is running."""
    return _frame.get()


@contextmanager
def standing_in(frame: Frame | None) -> Generator[None]:
    """Has calls taken by `frame` for a block; by none, for None."""
    token = _frame.set(frame)
    try:
        yield
    finally:
        _frame.reset(token)


@contextmanager
def looking_at_plain_calls(look: Callable[..., Any]) -> Generator[None]:
    """Has the calls of plain torch modules looked at by `look(module, *args, **kwargs)` for a block, in all threads."""
    with _lock:
        _Looking.blocks += 1
        nn.Module.__call__ = look
    try:
        yield
    finally:
        with _lock:
            _Looking.blocks -= 1
            if not _Looking.blocks:
                nn.Module.__call__ = call_module
