"""How an outermost call finds its context: blocks that are open, entries set for the next call, and its own arguments.

Blocks and pending entries live in context variables, so threads and tasks do not see each other's. They are merged
once, when the outermost composite is called; below it the context is an argument.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from suture.layers.context import Context, Declaration, Entries, Read, as_read, sources
from suture.layers.inputs import Inputs, inputs_of, known_reads
from suture.layers.intercepting import interceptor

P = ParamSpec("P")
R = TypeVar("R")


class _Waiting:
    """Counts, in the thread where it began, entries that wait for a call; until taken, or until nobody can call."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts
        counts["pending"] += 1
        self._ended = False

    def end(self) -> bool:
        """Ends the waiting; whether it had not ended before, as what a task inherits may have done in another."""
        was_waiting, self._ended = not self._ended, True
        self._counts["pending"] -= was_waiting
        return was_waiting


class _Given:
    """Entries given to a module from outside of a call."""

    def __init__(self, module: nn.Module, entries: Entries, waiting: _Waiting | None = None) -> None:
        self.module = weakref.ref(module, None if waiting is None else lambda _: waiting.end())
        self.entries = {scope: dict(keys) for scope, keys in entries.items()}
        self.waiting = waiting

    def __del__(self) -> None:
        if self.waiting is not None:
            self.waiting.end()

    def applies_to(self, called: nn.Module) -> bool:
        """Whether `called` is the module, a part of it, or a tree around it."""
        module = self.module()
        return module is not None and (
            any(inner is called for inner in module.modules()) or any(inner is module for inner in called.modules())
        )


class _Open(threading.local):
    """How much is given in this thread: context variables cannot be read in compiled code, this can."""

    def __init__(self) -> None:
        self.counts = {"blocks": 0, "pending": 0}


_open = _Open()
_blocks: ContextVar[tuple[_Given, ...]] = ContextVar("blocks", default=())
_pending: ContextVar[tuple[_Given, ...]] = ContextVar("pending", default=())


def enter_call(module: nn.Module, context: Context | Entries | None, entries: Mapping[str, Any]) -> Context:
    """The context for an outermost call of `module`.

    Raises:
        TypeError: `context` is neither a Context nor a dictionary of scopes, or nothing reads an entry of `entries`.
        ValueError: nothing reads an entry of `context`.
        RuntimeError: a block is open while a compiled function is traced.
    """
    if isinstance(context, Context) and context.in_call and not entries:
        return context
    inputs = inputs_of(module)
    layers: list[Entries] = [inputs.initial] if inputs.initial else []
    layers += _given_to(module, inputs)
    if isinstance(context, Context) and context.in_call:
        layers.append(context.given)
    elif context is not None:
        call = context.given if isinstance(context, Context) else _checked_scopes(context)
        _refuse_unread(module, call, inputs)
        layers.append(call)
        if isinstance(context, Context):
            context.forget()
    if entries:
        layers.append(_scoped(module, entries, inputs))
    merged = layers[0] if len(layers) == 1 else _merge(layers)
    running = Context(merged, written_through=context if isinstance(context, Context) else None)
    running.in_call, running.interceptor = True, interceptor()
    return running


@contextmanager
def open_block(module: nn.Module, /, *scopes: Entries, **named: Mapping[str, Any]) -> Generator[None]:
    """Gives entries to every call of `module`, of anything in it, and of a tree around it, for a block.

    It reaches every tree inside, however deep inside plain modules. An inner block wins over an outer one. Scopes are
    given by keyword, `scope={"key": value}`, or as dictionaries of scopes.

    Raises:
        ValueError: nothing in the module reads an entry.
        TypeError: the entries are not a dictionary of scopes.

    >>> from suture import layers as sl
    >>> model = nn.Sequential(sl.Chain(sl.UseContext("side", "x")))
    >>> with open_block(model, side={"x": 3}):
    ...     model(None)
    3
    """
    entries = _merge([*(_checked_scopes(given) for given in scopes), _checked_scopes(named)])
    _refuse_unread_anywhere(module, entries)
    given = _Given(module, entries)
    with _opened((*_blocks.get(), given), {given}):
        yield


def in_open_blocks(function: Callable[P, R]) -> Callable[P, R]:
    """The function, to which the blocks that are open now are open whenever and in whatever thread it is called."""
    if torch.compiler.is_compiling():
        return function
    blocks = _blocks.get()

    @functools.wraps(function)
    def inside(*args: P.args, **keywords: P.kwargs) -> R:
        before = _blocks.set(blocks)
        try:
            return function(*args, **keywords)
        finally:
            _blocks.reset(before)

    return inside


def set_pending(module: nn.Module, entries: Entries) -> None:
    """Gives `entries` to the next call of `module` or of anything in it; that call consumes them, also if it fails."""
    _pending.set((*_pending.get(), _Given(module, _checked_scopes(entries), _Waiting(_open.counts))))


@contextmanager
def one_call(module: nn.Module) -> Generator[None]:
    """Makes all calls in the block count as one for `module`: they share what was set for its next call.

    >>> from suture import layers as sl
    >>> model = sl.Chain(sl.UseContext("side", "x", default=0))
    >>> model.set_context("side", {"x": 3})
    >>> with one_call(model):
    ...     model(None), model(None)
    (3, 3)
    >>> model(None)
    0
    """
    taken = _take_pending(module)
    # Outermost: an open block wins over what was set for the next call.
    with _opened((*taken, *_blocks.get()), set(taken)):
        yield


@contextmanager
def _opened(blocks: tuple[_Given, ...], added: set[_Given]) -> Generator[None]:
    _blocks.set(blocks)
    _open.counts["blocks"] += len(added)
    try:
        yield
    finally:
        _open.counts["blocks"] -= len(added)
        # Not what was there before: a block inside a generator may end before one that was opened after it.
        _blocks.set(tuple(given for given in _blocks.get() if given not in added))


def _given_to(module: nn.Module, inputs: Inputs) -> list[Entries]:
    if torch.compiler.is_compiling():
        if _open.counts["blocks"] > 0 or _open.counts["pending"] > 0:
            raise RuntimeError(
                "A context block is open, or entries are set for the next call, which a compiled function cannot see. "
                "Pass the entries with the call, model(x, context={...}), or compile with model.compile(), which "
                "merges them outside of it."
            )
        return []
    pending = _take_pending(module) if _pending.get() else []
    for given in pending:
        _refuse_crossing(module, given.entries, inputs)
    blocks = [given for given in _blocks.get() if given.applies_to(module)]
    return [given.entries for given in (*pending, *blocks)]


def leave_pending() -> None:
    """In a `contextvars` context of its own: has calls see what was set for the next call, and leaves it for that."""
    waiting = [(given.module(), given.entries) for given in _pending.get()]
    _pending.set(())
    _blocks.set((*(_Given(module, entries) for module, entries in waiting if module is not None), *_blocks.get()))


def _take_pending(module: nn.Module) -> list[_Given]:
    waiting = _pending.get()
    taken = [given for given in waiting if given.applies_to(module)]
    _pending.set(tuple(given for given in waiting if given not in taken and given.module() is not None))
    taken = [given for given in taken if given.waiting is None or given.waiting.end()]
    for given in taken:
        around = given.module()
        _refuse_unread_anywhere(module if around is None else around, given.entries)
    return taken


def _merge(layers: list[Entries]) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for entries in layers:
        for scope, keys in entries.items():
            merged.setdefault(scope, {}).update(keys)
    return merged


def _checked_scopes(entries: Any) -> Entries:
    if isinstance(entries, Mapping) and all(isinstance(keys, Mapping) for keys in entries.values()):  # pyright: ignore[reportUnknownVariableType]
        return entries  # pyright: ignore[reportUnknownVariableType]
    raise TypeError(
        f"A context is a dictionary of scopes, each a dictionary of entries: {{'scope': {{'key': value}}}}. "
        f"Received: {entries!r:.100}."
    )


def _scoped(module: nn.Module, entries: Mapping[str, Any], inputs: Inputs) -> dict[str, dict[str, Any]]:
    scoped: dict[str, dict[str, Any]] = {}
    declarations: Mapping[str, Declaration] = getattr(module, "reads", {})
    own = [read for declared in declarations.values() for read in sources(as_read(declared))]
    for key, value in entries.items():
        # What it reads itself comes first: to a backbone, `padding_mask` is that of its tokens, whatever is inside.
        scopes = sorted({read.scope for read in own if read.key == key}) or inputs.scopes_of(key)
        if not scopes:
            _refuse_crossing(
                module, {read.scope: {key: value} for read in known_reads(module) if read.key == key}, inputs
            )
        if len(scopes) != 1:
            trouble = f"it is read in several scopes, {', '.join(scopes)}; say which with context={{scope: {{...}}}}"
            raise TypeError(
                f"Cannot pass {key!r} to {type(module).__name__} by keyword: "
                f"{trouble if scopes else f'nothing in it reads that. {_what_is_read(inputs.all_reads)}'}"
            )
        scoped.setdefault(scopes[0], {})[key] = value
    return scoped


def _refuse_unread(module: nn.Module, entries: Entries, inputs: Inputs) -> None:
    _refuse_crossing(module, entries, inputs)
    for scope, key in _unread(entries, inputs):
        what = _what_is_read(inputs.all_reads)
        raise ValueError(f"Nothing in {type(module).__name__} reads the context entry {scope}.{key}. {what}")


def _refuse_crossing(module: nn.Module, entries: Entries, inputs: Inputs) -> None:
    """Refuses what would have to go through a plain module to reach those that read it."""
    for scope, key in _unread(entries, inputs):
        if any(read.identity == f"{scope}.{key}" for read in known_reads(module)):
            raise ValueError(
                f"The context entry {scope}.{key} is read only inside a plain module, which cannot hand a "
                f"context on. Open a block instead: with model.context({scope}={{{key!r}: ...}}): model(x)"
            )


def _unread(entries: Entries, inputs: Inputs) -> list[tuple[str, str]]:
    named = [(scope, key) for scope, keys in entries.items() for key in keys]
    return [each for each in named if ".".join(each) not in inputs.all_reads and ".".join(each) not in inputs.written]


def _refuse_unread_anywhere(module: nn.Module, entries: Entries) -> None:
    if not entries:
        return
    reads = {read.identity: read for read in known_reads(module)}
    for scope, keys in entries.items():
        for key in keys:
            if f"{scope}.{key}" not in reads:
                raise ValueError(
                    f"Nothing in {type(module).__name__} reads the context entry {scope}.{key}. {_what_is_read(reads)}"
                )


def _what_is_read(reads: Mapping[str, Read]) -> str:
    return f"It reads: {', '.join(sorted(reads)) or 'nothing'}."
