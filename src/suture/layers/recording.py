"""The journal of the edits being made: each step with its inverse, so that a failure leaves nothing half-changed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from suture.layers.node import Node, Slot, node_of

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.swaps import Swap


class EditError(RuntimeError):
    """An edit, an undo or an eject that cannot be done. The tree is as it was before."""


class Recording:
    """The swaps made while it is open, the inverse of every step, and the composites put at a second place."""

    def __init__(self, author: object, cancels: list[Swap]) -> None:
        self.author = author
        self.cancels = cancels
        self.swaps: list[Swap] = []
        self.inverses: list[Callable[[], None]] = []
        self.borrowed: list[tuple[Composite, Slot, Composite | None]] = []

    def do(self, action: Callable[[], None], inverse: Callable[[], None]) -> None:
        action()
        self.inverses.append(inverse)

    def rollback(self) -> None:
        while self.inverses:
            self.inverses.pop()()

    # The steps that every edit is made of.

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
        before = (slot.layer, slot.name, slot.home)
        leaving, entering = node_of(slot.layer), node_of(layer)
        parents = [(node, node.parent) for node in (leaving, entering) if node is not None]

        def inverse() -> None:
            slot.fill(*before)
            for node, parent in reversed(parents):
                node.parent = parent
            composite.node.touch()

        slot.fill(layer, name, home if home is not composite else None)
        if leaving is not None and leaving.parent is composite:
            leaving.parent = None
        if entering is not None and not borrowed:
            entering.parent = composite
        composite.node.touch()
        self.inverses.append(inverse)

    def add_slot(self, composite: Composite, position: int, slot: Slot) -> None:
        slots = composite.node.slots
        self.do(lambda: slots.insert(position, slot), lambda: slots.remove(slot))

    def drop_slot(self, composite: Composite, slot: Slot) -> None:
        slots = composite.node.slots
        position = slots.index(slot)
        self.do(lambda: slots.remove(slot), lambda: slots.insert(position, slot))

    def own(self, node: Node, name: str, layer: nn.Module, *, borrowed: bool = False) -> None:
        """Makes a composite own `layer` as `name`; unless it is only borrowed, this is its home."""
        before, known, removal = node.children.get(name), name in node.names, node.names.get(name)

        def inverse() -> None:
            if before is not None:
                node.own(name, before)
            else:
                node.disown(name)
            if known:
                node.names[name] = removal
            else:
                del node.names[name]

        self.do(lambda: node.own(name, layer, borrowed=borrowed), inverse)

    def disown(self, node: Node, name: str, by: Swap | None) -> None:
        """Ends an ownership. While `by` can be undone, the name is not given to something else."""
        layer = node.children.get(name)
        if layer is None:
            return
        removal = node.names[name]

        def action() -> None:
            node.disown(name)
            node.names[name] = weakref.ref(by) if by is not None else removal

        def inverse() -> None:
            node.own(name, layer)
            node.names[name] = removal

        self.do(action, inverse)

    def forget(self, node: Node, name: str) -> None:
        """Gives a name free that only an undone edit had given."""
        names = node.names
        remaining = {other: removal for other, removal in names.items() if other != name}
        self.do(lambda: setattr(node, "names", remaining), lambda: setattr(node, "names", names))

    def set_changes(self, slot: Slot, changes: list[weakref.ref[Swap]]) -> None:
        before = slot.changes
        self.do(lambda: setattr(slot, "changes", changes), lambda: setattr(slot, "changes", before))

    def relocate(self, swap: Swap, composite: Composite, slot: Slot) -> None:
        """The content of a slot moves to another, and with it the changes that made it."""
        before = (swap.composite, swap.slot)

        def move(to: tuple[Composite, Slot]) -> None:
            swap.composite, swap.slot = to

        self.do(lambda: move((composite, slot)), lambda: move(before))
        self.set_changes(before[1], [change for change in before[1].changes if change() is not swap])
        ordered = sorted([*slot.swaps, swap], key=lambda change: change.number)
        self.set_changes(slot, [weakref.ref(change) for change in ordered])

    def mark(self, swap: Swap, live: bool) -> None:
        self.do(lambda: setattr(swap, "live", live), lambda: setattr(swap, "live", not live))

    def settle(self) -> None:
        """At its end, every composite that an edit put at a second place has left the first.

        Raises `EditError` for one that has not.
        """
        for composite, slot, former in self.borrowed:
            node = node_of(slot.layer)
            if node is None:
                continue
            if former is not None and _calls_elsewhere(former, slot):
                raise EditError(
                    f"{type(slot.layer).__name__} is wired in {type(former).__name__} {former.node.path!r} already, "
                    f"and a composite has one parent. Put in a copy that shares its layers: layer.structural_copy()."
                )
            if node.parent is not composite:
                self.fill(composite, slot, slot.layer, slot.name, slot.home)


def _calls_elsewhere(composite: Composite, slot: Slot) -> bool:
    return any(other.layer is slot.layer and other is not slot for other in composite.node.filled())


class _Open(threading.local):
    def __init__(self) -> None:
        self.recordings: list[Recording] = []
        self.borrowing = 0


_open = _Open()


@contextmanager
def recording(author: object = None, cancels: list[Swap] | None = None) -> Generator[Recording]:
    """Groups the edits made inside into one; an exception takes all of them back.

    `author` is who is named when one of them is in the way of another. An edit that takes back one of `cancels` undoes
    that one instead of being made.
    """
    outer = _open.recordings[-1] if _open.recordings else None
    if outer is not None:
        author = author if author is not None else outer.author
        cancels = cancels if cancels is not None else outer.cancels
    record = Recording(author, cancels or [])
    _open.recordings.append(record)
    try:
        yield record
        record.settle()
    except BaseException:
        record.rollback()
        raise
    finally:
        _open.recordings.pop()
    if outer is not None:
        outer.swaps += record.swaps
        outer.inverses += record.inverses


def on_rollback(inverse: Callable[[], None]) -> None:
    """Has `inverse` run should the edits that are being recorded be taken back."""
    if _open.recordings:
        _open.recordings[-1].inverses.append(inverse)


@contextmanager
def borrowing() -> Generator[None]:
    """Allows a composite that has a parent to be put in a new composite, on the way into an edit."""
    _open.borrowing += 1
    try:
        yield
    finally:
        _open.borrowing -= 1


def may_borrow() -> bool:
    """Whether a composite that has a parent may be put in a new one now."""
    return _open.borrowing > 0
