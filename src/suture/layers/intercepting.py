"""Call functions that stand in for the layer calls of whatever is called in a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from suture.layers.context import Context, Interceptor
from suture.layers.frames import CallFunction, call_module, current_frame, refuse_other_context, standing_in
from suture.layers.symbolic import inner_call, seeing_plain_calls

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.node import Slot


class _Open(threading.local):
    """How many blocks were opened in this thread: context variables cannot be read in compiled code, this can."""

    def __init__(self) -> None:
        self.counts = {"blocks": 0}


_open = _Open()


class _Block:
    """A call function, as long as its block is open."""

    def __init__(self, call: CallFunction) -> None:
        self.call: CallFunction | None = call
        self._counts = _open.counts
        self._counts["blocks"] += 1

    def end(self) -> None:
        # Also for tasks that began in it, and when a generator with the block in it is closed by another thread.
        self.call = None
        self._counts["blocks"] -= 1


_blocks: ContextVar[tuple[_Block, ...]] = ContextVar("blocks with call functions", default=())


@contextmanager
def intercept(call: CallFunction) -> Generator[None]:
    """Has `call(layer, *args, **kwargs)` stand in for every layer call of trees and graphs in a block.

    It is the call function of `suture.rewire`, for calls that happen now: composites are handed to it first, and then,
    if it calls them, what they call. `layer(*args, **kwargs)` gives what the model computes; keywords are what a layer
    reads from the context, and for a composite the context, to be passed on. Other layers that it calls run directly.

    Blocks may be nested: the outer call function is asked first, and its `layer(...)` asks the inner one. Other threads
    and tasks are not concerned. Compiled code cannot be intercepted, and says so.

    Example:
        >>> import torch
        >>> from suture import intercept, layers as sl
        >>> def call(layer, *args, **kwargs):
        ...     y = layer(*args, **kwargs)
        ...     return -y if isinstance(layer, sl.ReLU) else y
        >>> model = sl.Chain(sl.ReLU(), sl.Identity())
        >>> with intercept(call):
        ...     model(torch.tensor([1.0, 2.0]))
        tensor([-1., -2.])
    """
    if not callable(call):
        raise TypeError(f"intercept() takes a call function, call(layer, *args, **kwargs). Received: {call!r:.60}.")
    block = _Block(call)
    _blocks.set((*_blocks.get(), block))
    try:
        with seeing_plain_calls():
            yield
    finally:
        block.end()
        # Not what was there before: a block inside a generator may end before one that was opened after it.
        _blocks.set(tuple(each for each in _blocks.get() if each is not block))


def interceptor() -> CallFunctions | None:
    """What stands in for the layer calls of a call that begins now.

    Raises `RuntimeError` where a compiled function is traced in a block.
    """
    if torch.compiler.is_compiling():
        if _open.counts["blocks"] > 0:
            raise RuntimeError(
                "A call function stands in for layer calls, which a compiled function cannot see. Call the model as it "
                "was before it was compiled, or make a graph of it and rewire that: suture.rewire(model, call)."
            )
        return None
    blocks = tuple(block for block in _blocks.get() if block.call is not None)
    return CallFunctions(blocks) if blocks else None


class CallFunctions(Interceptor):
    """Hands every layer call to call functions, each inside the one before."""

    def __init__(self, blocks: tuple[_Block, ...]) -> None:
        self.blocks = blocks

    def call_outermost(self, composite: Composite, args: tuple[Any, ...], context: Context) -> Any:
        return self.call_composite(composite, args, context, composite)

    def call_slot(self, composite: Composite, slot: Slot, args: tuple[Any, ...], context: Context) -> Any:
        layer = slot.layer
        if layer is None:
            return args
        if slot.reads is None:
            return self.call_composite(layer, args, context, slot)
        args, kwargs = slot.arguments(args, context)
        return self.hand_on(layer, args, kwargs, lambda args, kwargs: inner_call(layer)(*args, **kwargs), slot)

    def call_composite(self, layer: nn.Module, args: tuple[Any, ...], context: Context, place: object) -> Any:
        """Calls a composite, whose children are then handed on too."""

        def run(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
            return call_module(layer, *args, context=context)

        # What is new in a call function is not handed on, also where it is given the context.
        return self.hand_on(layer, args, {"context": context.without_interceptor()}, run, place)

    def hand_on(
        self,
        layer: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        place: object,
        level: int = 0,
    ) -> Any:
        """Calls `layer` through the call functions from `level` on.

        Args:
            layer: What is called.
            args: With what, by position.
            kwargs: With what, by keyword.
            run: What the call functions stand in for.
            place: Where it is called: a slot of a tree, the root of one, or what another model says.
            level: How many call functions were asked already.
        """
        call = None
        while level < len(self.blocks) and (call := self.blocks[level].call) is None:
            level += 1
        if call is None:
            with _calling(self.blocks, None):
                return run(args, kwargs)
        with _calling((), _Frame(self, layer, kwargs, run, place, level + 1)):
            return call(layer, *args, **kwargs)


@contextmanager
def _calling(blocks: tuple[_Block, ...], frame: _Frame | None) -> Generator[None]:
    token = _blocks.set(blocks)
    try:
        with standing_in(frame):
            yield
    finally:
        _blocks.reset(token)


def current_place() -> object:
    """In a call function: where the layer is called that it stands in for."""
    frame = current_frame()
    return frame.place if isinstance(frame, _Frame) else None


class _Frame:
    """A call function that stands in for a layer; calling the layer goes on to the next one."""

    def __init__(
        self,
        handler: CallFunctions,
        layer: nn.Module,
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        place: object,
        level: int,
    ) -> None:
        self.handler = handler
        self.layer = layer
        self.kwargs = kwargs
        self.run = run
        self.place = place
        self.level = level

    def takes(self, layer: object) -> bool:
        return layer is self.layer

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A composite gets the context of its place, whatever became of the keyword.
        if "context" in self.kwargs:
            refuse_other_context(self.layer, self.kwargs["context"], kwargs)
            kwargs = self.kwargs
        return self.handler.hand_on(self.layer, args, kwargs, self.run, self.place, self.level)
