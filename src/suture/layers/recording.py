"""The journal of the edits being made: each step with its inverse, so that a failure leaves nothing half-changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from torch import nn

from suture.layers.node import Slot, node_of

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.swap import Swap


class EditError(RuntimeError):
    """An edit, an undo or an eject that cannot be done. The tree is as it was before."""


class Recording:
    """The swaps made while it is open, and how to take back every step."""

    def __init__(self, author: object, cancels: list[Swap]) -> None:
        self.author = author
        self.cancels = cancels
        self.names: Iterator[str | None] | None = None
        """The names that the layers put in get, one for each swap, where edits are done again."""
        self.swaps: list[Swap] = []
        self.inverses: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def given_name(self) -> str | None:
        """The name for the next layer that is put in, if it is given."""
        return next(self.names, None) if self.names is not None else None

    def on_rollback(self, function: Callable[..., object], *args: Any) -> None:
        """Has a function called should this be taken back."""
        self.inverses.append((function, args))

    def rollback(self) -> None:
        while self.inverses:
            function, args = self.inverses.pop()
            function(*args)

    # The steps that every edit is made of.

    def set(self, target: object, attribute: str, value: object) -> None:
        self.on_rollback(setattr, target, attribute, getattr(target, attribute))
        setattr(target, attribute, value)

    def fill(
        self,
        composite: Composite,
        slot: Slot,
        layer: nn.Module | None,
        name: str,
        home: Composite | None,
        *,
        borrowed: bool = False,
    ) -> None:
        """Fills a slot; unless the layer is only borrowed, `composite` becomes its parent."""
        node, leaving, entering = composite.node, node_of(slot.layer), node_of(layer)
        self.on_rollback(node.touch)
        for inner in (leaving, entering):
            if inner is not None:
                self.on_rollback(setattr, inner, "parent", inner.parent)
        self.on_rollback(node.fill, slot, slot.layer, slot.name, slot.home)
        node.fill(slot, layer, name, home if home is not composite else None)
        if leaving is not None and leaving.parent is composite:
            leaving.parent = None
        if entering is not None and not borrowed:
            entering.parent = composite
        node.touch()

    def add_slot(self, composite: Composite, position: int, slot: Slot) -> None:
        self.on_rollback(composite.node.remove, slot)
        composite.node.insert(position, slot)

    def drop_slot(self, composite: Composite, slot: Slot) -> None:
        self.on_rollback(composite.node.insert, composite.node.position(slot), slot)
        composite.node.remove(slot)

    def own(self, home: Composite, name: str, layer: nn.Module) -> None:
        """Makes `home` own `layer` as `name`, which nothing has there."""
        node = home.node
        if node.is_new(name):
            self.on_rollback(node.forget, name)
        self.on_rollback(node.disown, name, None)
        node.own(name, layer)

    def disown(self, home: Composite, name: str, by: Swap | None) -> None:
        """Ends an ownership. While `by` can be undone, the name is not given to something else."""
        node = home.node
        if (before := node.removals.get(name)) is not None:
            self.on_rollback(node.removals.__setitem__, name, before)
        self.on_rollback(node.own, name, node.children[name])
        node.disown(name, by)

    def count(self, home: Composite, name: str, by: int) -> None:
        """Counts the uses of a name."""
        self.on_rollback(home.node.count, name, -by)
        home.node.count(name, by)

    def forget(self, home: Composite, name: str) -> None:
        """Gives a name free that only an undone edit had given."""
        self.on_rollback(home.node.remember, name, home.node.forget(name))

    def set_changes(self, slot: Slot, changes: Iterable[Swap]) -> None:
        self.set(slot, "changes", [weakref.ref(change) for change in changes])

    def relocate(self, change: Swap, composite: Composite, slot: Slot) -> None:
        """The content of a slot moves to another, and with it a change that made it."""
        self.set_changes(change.slot, [other for other in change.slot.swaps if other is not change])
        self.set_changes(slot, sorted([*slot.swaps, change], key=lambda each: each.number))
        # The hole of a swap that hoists is its own slot.
        for moving in (*(hole for hole in change.holes if hole.slot is change.slot), change):
            self.set(moving, "composite", composite)
            self.set(moving, "slot", slot)


# Of a thread or task each: what one of them records is not undone by a failure in another.
_innermost: ContextVar[Recording | None] = ContextVar("the recording that is open", default=None)
_borrows: ContextVar[bool] = ContextVar("whether a composite may be put in a second one", default=False)


@contextmanager
def recording(author: object = None, cancels: list[Swap] | None = None) -> Generator[Recording]:
    """Groups the edits made inside into one; an exception takes all of them back.

    `author` is who is named when one of them is in the way of another. An edit that takes back one of `cancels` undoes
    that one instead of being made.
    """
    outer = _innermost.get()
    if outer is not None:
        author = author if author is not None else outer.author
        cancels = cancels if cancels is not None else outer.cancels
    record = Recording(author, cancels or [])
    record.names = outer.names if outer is not None else None
    token = _innermost.set(record)
    try:
        yield record
    except BaseException:
        record.rollback()
        raise
    finally:
        _innermost.reset(token)
    if outer is not None:
        outer.swaps += record.swaps
        outer.inverses += record.inverses


def on_rollback(function: Callable[..., object], *args: Any) -> None:
    """Has a function called should the edits that are being recorded be taken back."""
    record = _innermost.get()
    if record is not None:
        record.on_rollback(function, *args)


def current_author() -> object:
    """Who makes the edits that are being recorded now; None for nobody in particular."""
    record = _innermost.get()
    return record.author if record is not None else None


@contextmanager
def borrowing() -> Generator[None]:
    """Allows a composite that has a parent to be put in a new composite, on the way into an edit."""
    token = _borrows.set(True)
    try:
        yield
    finally:
        _borrows.reset(token)


def may_borrow() -> bool:
    """Whether a composite that has a parent may be put in a new one now."""
    return _borrows.get()
