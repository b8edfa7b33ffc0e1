"""What a call carries beside its arguments: named entries, read by layers at any depth.

A `Context` is an explicit, opaque object handed from composite to composite. A leaf never gets it: it declares what it
reads, and receives the values as keyword arguments. So every dependency is visible before the first call.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from suture.layers.symbolic import step

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.node import Slot


class _Required:
    """The default of an entry that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()

Entries = Mapping[str, Mapping[str, Any]]


class Read:
    """A declared read of one context entry: a scope, a key, and a default where the entry is optional.

    >>> Read("inputs", "positions", default=None).required
    False
    """

    __slots__ = ("default", "key", "scope")

    def __init__(self, scope: str, key: str, default: Any = REQUIRED) -> None:
        self.scope = scope
        self.key = key
        self.default = default

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @property
    def identity(self) -> str:
        return f"{self.scope}.{self.key}"

    def __repr__(self) -> str:
        return f"Read({self.scope!r}, {self.key!r}{'' if self.required else f', default={self.default!r}'})"


class Derived:
    """A value computed from other entries, at most once per call, and shared by all layers that declare an equal one.

    `function` is called with the values of `reads` and with `parameters`, all by keyword. Two are equal when their
    function, reads and parameters are.

    >>> def double(value: int, factor: int) -> int:
    ...     return value * factor
    >>> Derived(double, reads={"value": ("scope", "key")}, factor=2).identity
    'double(value=scope.key, factor=2)'
    """

    __slots__ = ("__weakref__", "function", "identity", "parameters", "reads", "sources", "token")

    def __init__(self, function: Callable[..., Any], reads: Mapping[str, Declaration], **parameters: Any) -> None:
        self.function = function
        self.reads = {name: as_read(read) for name, read in reads.items()}
        self.parameters = parameters
        self.sources = tuple(source.identity for read in self.reads.values() for source in sources(read))
        arguments = [f"{name}={read.identity}" for name, read in self.reads.items()]
        arguments += [f"{name}={value!r}" for name, value in parameters.items()]
        self.identity = f"{function.__qualname__}({', '.join(arguments)})"
        # Found out once, here, so that a call need not compare: equal ones have one token.
        alike = _alike.setdefault(self.identity, WeakSet())
        equal = next((other for other in list(alike) if self.equals(other)), None)
        self.token = f"{self.identity} #{next(_tokens)}" if equal is None else equal.token
        alike.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_derived, (self.function, self.reads, self.parameters)

    def equals(self, other: Derived) -> bool:
        """Whether it computes the same. The identity alone does not tell: values may be printed alike."""
        return self is other or (
            self.identity == other.identity
            and self.function == other.function
            and all(_equal_reads(read, other.reads[name]) for name, read in self.reads.items())
            and all(_equal(value, other.parameters[name]) for name, value in self.parameters.items())
        )

    def __repr__(self) -> str:
        return f"Derived({self.identity})"


Declaration = Read | Derived | tuple[str, str]

_alike: dict[str, WeakSet[Derived]] = {}
_tokens = itertools.count(1)


def _make_derived(
    function: Callable[..., Any], reads: Mapping[str, Declaration], parameters: Mapping[str, Any]
) -> Derived:
    return Derived(function, reads, **parameters)


def _equal_reads(one: Read | Derived, other: Read | Derived) -> bool:
    if isinstance(one, Derived) or isinstance(other, Derived):
        return isinstance(one, Derived) and isinstance(other, Derived) and one.equals(other)
    return _equal(one.default, other.default)


def _equal(one: Any, other: Any) -> bool:
    # Tensors and the like compare element by element; these are equal where they are one.
    return one is other or (type(one) is type(other) and (one == other) is True)


def as_read(declaration: Declaration) -> Read | Derived:
    """The tuple `("scope", "key")` is short for a required `Read`."""
    return Read(*declaration) if isinstance(declaration, tuple) else declaration


def sources(read: Read | Derived) -> list[Read]:
    """The entries that a declared read depends on."""
    if isinstance(read, Read):
        return [read]
    return [source for inner in read.reads.values() for source in sources(inner)]


HANDED_ON: Final = Read("call", "*")
"""What a plain module gave to a layer of its own beyond the first argument: further arguments and keywords."""


class MissingContextError(LookupError):
    """A layer reads a context entry that nobody gave; the message shows how to give it.

    >>> from suture import layers as sl
    >>> try:
    ...     sl.Chain(sl.UseContext("image", "patches"))(0)
    ... except MissingContextError as error:
    ...     print(str(error).partition(". ")[0])
    A layer reads the context entry 'patches' of 'image', which was not given
    """


def _missing(read: Read, given: Entries) -> str:
    entries = ", ".join(f"{scope}.{key}" for scope, keys in given.items() for key in keys) or "nothing"
    return (
        f"A layer reads the context entry {read.key!r} of {read.scope!r}, which was not given. Given: {entries}. "
        f"Give it for one call with model(x, context={{{read.scope!r}: {{{read.key!r}: value}}}}), or for a block:\n"
        f"    with model.context({read.scope}={{{read.key!r}: value}}):\n"
        f"        model(x)"
    )


class Interceptor(ABC):
    """What the composites of a call hand the calls of their children to, instead of calling them."""

    @abstractmethod
    def call_outermost(self, composite: Composite, args: tuple[Any, ...], context: Context) -> Any:
        """Calls the composite that was called from outside."""

    @abstractmethod
    def call_slot(self, composite: Composite, slot: Slot, args: tuple[Any, ...], context: Context) -> Any:
        """Calls the layer in a slot of a composite."""


class Context:
    """The entries of one call, in scopes. Pass your own to read afterwards what the call wrote.

    >>> context = Context({"attention": {"scale": 2.0}})
    >>> context.get("attention", "scale"), context.get("attention", "bias", None)
    (2.0, None)
    """

    __slots__ = ("_derived", "_entries", "_written", "_written_through", "in_call", "interceptor")

    def __init__(self, entries: Entries | None = None, written_through: Context | None = None) -> None:
        self._entries: dict[str, dict[str, Any]] = {scope: dict(keys) for scope, keys in (entries or {}).items()}
        self._written: dict[str, dict[str, Any]] = {}
        self._derived: dict[str, tuple[Derived, Any]] = {}
        self._written_through = written_through
        self.in_call = False
        self.interceptor: Interceptor | None = None
        """What the composites of this call hand the calls of their children to."""

    @property
    def given(self) -> Entries:
        """What a call begins with: not what an earlier one wrote, but within a call what was written so far."""
        if not self.in_call:
            return self._entries
        scopes = dict.fromkeys((*self._entries, *self._written))
        return {scope: {**self._entries.get(scope, {}), **self._written.get(scope, {})} for scope in scopes}

    def fork(self) -> Context:
        """A context that begins with what this one holds now; neither sees what becomes of the other."""
        fork = Context(self.given)
        fork._derived = dict(self._derived)
        fork.in_call, fork.interceptor = True, self.interceptor
        return fork

    def without_interceptor(self) -> Context:
        """The same entries, read and written, for layers whose calls nothing stands in for."""
        view = Context()
        view._entries, view._written, view._derived = self._entries, self._written, self._derived
        view._written_through, view.in_call = self._written_through, True
        return view

    def join(self, fork: Context) -> None:
        """Takes over what was written and derived in a fork."""
        for scope, entries in fork._written.items():
            for key, value in entries.items():
                self.set(scope, key, value)
        self._derived = dict(fork._derived)

    def forget(self) -> None:
        """Forgets what an earlier call wrote."""
        self._written.clear()

    def get(self, scope: str, key: str, default: Any = REQUIRED) -> Any:
        """The entry `key` of `scope`. Raises `MissingContextError` where it is absent and no default is given."""
        return self.read(Read(scope, key, default))

    def set(self, scope: str, key: str, value: Any) -> None:
        """In a call, writes an entry for whatever reads it later; in one of your own, gives an entry."""
        (self._written if self.in_call else self._entries).setdefault(scope, {})[key] = value
        if self._written_through is not None:
            self._written_through.note(scope, key, value)
        identity = f"{scope}.{key}"
        for token, (derived, _) in list(self._derived.items()):
            if identity in derived.sources:
                del self._derived[token]

    def note(self, scope: str, key: str, value: Any) -> None:
        """Keeps what a call wrote, to be read afterwards."""
        self._written.setdefault(scope, {})[key] = value

    def read(self, read: Read | Derived) -> Any:
        """The value of a declared read."""
        if isinstance(read, Derived):
            if read.token not in self._derived:
                values = {name: self.read(inner) for name, inner in read.reads.items()}
                self._derived[read.token] = (read, step(read.function, **values, **read.parameters))
            return self._derived[read.token][1]
        for entries in (self._written, self._entries):
            keys = entries.get(read.scope)
            if keys is not None and read.key in keys:
                return keys[read.key]
        if read.required:
            raise MissingContextError(_missing(read, self._entries))
        return read.default

    def __repr__(self) -> str:
        scopes = ", ".join(f"{scope}={{{', '.join(keys)}}}" for scope, keys in self._entries.items())
        return f"Context({scopes})"
