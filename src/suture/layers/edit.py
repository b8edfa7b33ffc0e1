"""Recorded edits of a tree: what they changed can be undone."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from suture.layers.history import note, notice, take_back
from suture.layers.node import Slot, node_of
from suture.layers.recording import EditError, Recording, recording
from suture.layers.swap import Swap

if TYPE_CHECKING:
    from suture.layers.composite import Composite

_SHOWN = 3
"""How many of the changes of an edit its `repr` names."""


class Edit:
    """What one editing call changed. It can be undone while this handle lives.

    `layers` are the layers put in or, for a removal, taken out.
    """

    def __init__(self, swaps: list[Swap]) -> None:
        self.swaps = swaps

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The layers put in or, for a removal, taken out, in the order of the edits."""
        return tuple(layer for swap in self.swaps if (layer := swap.old if swap.new is None else swap.new) is not None)

    def undo(self) -> None:
        """Takes the edit back, whole or not at all. Raises `EditError`, naming what is in the way."""
        if self.swaps and not any(swap.live for swap in self.swaps):
            raise EditError("This edit is undone already.")
        undo_swaps(self.swaps)

    def __repr__(self) -> str:
        state = " (undone)" if self.swaps and not any(swap.live for swap in self.swaps) else ""
        count = len(self.swaps)
        shown = [*map(str, self.swaps[:_SHOWN]), *(["..."] if count > _SHOWN else [])]
        return f"Edit({f'{count} changes: ' if count > 1 else ''}{'; '.join(shown) or 'nothing'}){state}"


@contextmanager
def editing(model: nn.Module) -> Generator[Edit]:
    """A block of edits that holds whole or not at all: an exception inside takes every edit back.

    >>> from suture import layers as sl
    >>> model = sl.Chain(sl.Linear(2, 2), sl.ReLU())
    >>> with editing(model) as edit:
    ...     _ = model.append(sl.Linear(2, 2))
    >>> edit.undo()
    >>> len(model)
    2
    """
    _refuse_no_model(model)
    edit = Edit([])
    with recording() as record:
        yield edit
        edit.swaps = list(record.swaps)


def _refuse_no_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"editing() takes the model that is edited. Received: {model!r:.80} ({type(model).__name__}).")


def swap(composite: Composite, slot: Slot, new: nn.Module | None, name: str | None = None) -> Edit:
    """Puts `new` where `slot` of `composite` holds a layer, or nothing; None takes the layer out.

    Raises `EditError` when a composite in `new` stands somewhere else too, or would contain itself.
    """
    with recording() as record:
        if _cancels(record, composite, slot.layer, new):
            return Edit([])
        change = Swap(composite, slot, new, record.author)
        notice(change)
        change.make(record, record.given_name() or name)
        note(record, change)
    return Edit([change])


def insert(composite: Composite, position: int, new: nn.Module, name: str | None = None) -> Edit:
    """Puts `new` in a new slot at `position` among the slots of `composite`."""
    with recording() as record:
        if _cancels(record, composite, None, new):
            return Edit([])
        slot = Slot()
        record.add_slot(composite, position, slot)
        return swap(composite, slot, new, name)


def undo_swaps(swaps: list[Swap]) -> None:
    """Takes swaps back, the last first; all or none. Raises `EditError`, naming what is in the way."""
    together = {id(change) for change in swaps}
    with recording() as record:
        for change in reversed(swaps):
            if change.live:
                change.take_back(record, together)
                take_back(record, change)
                change.composite.settle(record)


def _cancels(record: Recording, composite: Composite, old: nn.Module | None, new: nn.Module | None) -> bool:
    """Whether this edit takes back a swap that is being ejected; then that swap is undone instead."""
    for change in reversed(record.cancels):
        if change.live and change.composite is composite and change.new is old and _alike(change.old, new):
            undo_swaps([change])
            return True
    return False


def _alike(one: nn.Module | None, other: nn.Module | None) -> bool:
    """Whether two layers are one, or composites of a class that wire the same layers."""
    if one is other:
        return True
    ours, theirs = node_of(one), node_of(other)
    if ours is None or theirs is None or type(one) is not type(other):
        return False
    pairs = itertools.zip_longest(ours.filled(), theirs.filled())
    return all(a is not None and b is not None and _alike(a.layer, b.layer) for a, b in pairs)
