"""The bookkeeping of one composite: what it wires, in which order, and under which names it owns layers.

Wiring and ownership are two things. A `Slot` is one place in the wiring. The layer in it is owned either by the same
composite or, when an edit has put a layer around one that was already there, by the composite that owned it before.
A name is a layer's home and key for ever; no edit renames a layer it did not bring.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from bisect import bisect_left, insort
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from suture.layers.context import HANDED_ON, Context, Derived, Read, as_read
from suture.layers.frames import call_module
from suture.layers.names import Names
from suture.layers.symbolic import inner_call

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.description import Held
    from suture.layers.history import History
    from suture.layers.swap import Swap

_versions = itertools.count(1)
_GAP = 2**40
"""How far apart the order keys of neighbours are where there is room."""
_by_order = operator.attrgetter("order")


class Slot:
    """One place in a wiring. It keeps its position while empty, so that what was taken out can return."""

    __slots__ = ("call", "changes", "handed_on", "home", "layer", "name", "order", "plain", "reads", "used")

    layer: nn.Module | None
    reads: tuple[tuple[str, Read | Derived], ...] | None
    """What the leaf reads from the context; None where the layer takes the context itself."""
    plain: bool
    """Whether the layer is called with its arguments and nothing else."""
    call: Any
    """What is called; None for an empty slot, or one that was not prepared yet."""

    def __init__(self) -> None:
        self.changes: list[weakref.ref[Swap]] = []
        self.order = 0
        """Where it stands among the slots of its composite, for as long as it is one of them."""
        self.used = False
        """Whether it is a reason for its home to own the layer: not where it is out of the wiring."""
        self.handed_on = False
        """Whether the layer gets the further arguments of a plain module's call as well."""
        self.fill(None, "", None)

    def fill(self, layer: nn.Module | None, name: str, home: Composite | None) -> None:
        """Puts `layer`, owned as `name` by `home` (None: by the composite of this slot), in this place."""
        self.layer, self.name, self.home = layer, name, home
        self.prepare()

    def prepare(self) -> Any:
        """Finds how the layer is called, and gives what is called."""
        layer = self.layer
        self.call, self.reads, self.plain = None, None, False
        if node_of(layer) is not None:
            # A composite inside a tree is called past the override that serves the outermost one.
            self.call = partial(call_module, layer)
        elif layer is not None:
            self.call = inner_call(layer)
            declared: dict[str, Any] = getattr(layer, "reads", {})
            self.reads = tuple((keyword, as_read(read)) for keyword, read in declared.items())
            self.plain = len(self.reads) == 0 and not self.handed_on
        return self.call

    def invoke(self, args: tuple[Any, ...], context: Context) -> Any:
        """Calls the layer as it wants to be called."""
        call: Any = self.call or self.prepare()
        if self.handed_on:
            args, keywords = self.arguments(args, context)
            return call(*args, **keywords)
        if self.reads is None:
            return call(*args, context=context)
        return call(*args, **{keyword: context.read(read) for keyword, read in self.reads})

    def arguments(self, args: tuple[Any, ...], context: Context) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the layer is called with, where it is given `args`."""
        if self.call is None:
            self.prepare()
        keywords: dict[str, Any] = {}
        if self.handed_on:
            further, keywords = context.read(HANDED_ON)
            args = (*args, *further)
        if self.reads is None:
            return args, {"context": context}
        return args, {**keywords, **{keyword: context.read(read) for keyword, read in self.reads}}

    @property
    def swaps(self) -> list[Swap]:
        """The changes of this slot that can still be undone, oldest first."""
        return [swap for reference in self.changes if (swap := reference()) is not None and swap.live]

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.layer, self.name, self.home, self.order, self.used, self.handed_on, self.swaps)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.layer, self.name, self.home, self.order, self.used, self.handed_on, swaps = state
        self.changes = [weakref.ref(swap) for swap in swaps]
        # The layer may not be complete yet, where a copy or a file holds a cycle: it is looked at when first called.
        self.call, self.reads, self.plain = None, None, False


class Node(Names):
    """The place of one composite in its tree. It exists before the composite has been initialised."""

    def __init__(self, module: Composite) -> None:
        self.module = weakref.ref(module)
        super().__init__()
        self.slots: list[Slot] = []
        """In the order of the calls, the empty ones too."""
        self.version = next(_versions)
        self.shares_leaves = False
        self.taken_apart = False
        """Whether it was taken out of the wiring, but for layers in it that are still called."""
        self.removal: weakref.ref[Swap] | None = None
        """The swap that took it out, until it returns."""
        self.cached: tuple[int, Any] | None = None
        self.history: History | None = None
        """What was done to the tree of which this is the root."""
        self.edits = 0
        """How many edits stand that were made here or in what is owned here."""
        self.copy_of: tuple[Held, int] | None = None
        """Of what, and of which version of it, this is a structural copy."""
        self.path_around = ""
        """The path of the plain module that this composite stands in, where that is known."""
        self.hands_on_to: str | None = None
        """The name of the layer here that gets what a plain module's call gives beyond its first argument."""
        self._positions: dict[int, list[Slot]] = {}
        self._filled: list[Slot] = []
        self._parent: weakref.ref[Composite] | None = None
        self._owner: weakref.ref[Composite] | None = None
        self.name = ""

    # Links upwards are weak, so that a tree without edits holds no reference cycle and is freed at once.

    @property
    def parent(self) -> Composite | None:
        return self._parent() if self._parent is not None else None

    @parent.setter
    def parent(self, parent: Composite | None) -> None:
        self._parent = None if parent is None else weakref.ref(parent)

    @property
    def last_owner(self) -> Composite | None:
        """The composite that owns this one, as `name`, or was the last to own it."""
        return self._owner() if self._owner is not None else None

    @last_owner.setter
    def last_owner(self, owner: Composite | None) -> None:
        self._owner = None if owner is None else weakref.ref(owner)

    @property
    def owner(self) -> Composite | None:
        owner = self.last_owner
        return owner if owner is not None and owner.node.children.get(self.name) is self.module() else None

    def __getstate__(self) -> dict[str, Any]:
        removals = {name: swap for name in self.removals if (swap := self.last_removal(name)) is not None}
        removal = self.removal() if self.removal is not None else None
        # A home that nothing calls any more is found again by what returns to it.
        waiting = self.owner is None and (self.taken_apart or self.parent is not None)
        links: dict[str, Any] = {"module": None, "_parent": None, "_owner": self.last_owner if waiting else None}
        derived: dict[str, Any] = {"cached": None, "copy_of": None, "_positions": None, "_filled": None, "_left": None}
        # What only borrows a composite, such as a wrapper that was taken out again, is neither parent nor owner.
        called = {slot.order: node for slot in self._filled if (node := node_of(slot.layer)) is not None}
        owned = {name: node for name, child in self.children.items() if (node := node_of(child)) is not None}
        own: dict[str, Any] = {
            "calls": {order for order, node in called.items() if node.parent is self.module()},
            "owns": {name for name, node in owned.items() if node.owner is self.module() and node.name == name},
        }
        return self.__dict__ | {"removals": removals, "removal": removal} | own | derived | links

    def restore(self, state: dict[str, Any]) -> None:
        """Takes the state of a copied or unpickled node. It links what is below; the links upwards come from there."""
        links: dict[str, Any] = {"module": self.module, "_parent": self._parent, "_owner": self._owner}
        derived: dict[str, Any] = {"_positions": {}, "_filled": [], "_left": {}}
        self.__dict__.update(state | links | derived)
        calls: set[int] = self.__dict__.pop("calls")
        owns: set[str] = self.__dict__.pop("owns")
        if (owner := state["_owner"]) is not None:
            self.last_owner = owner
        self.removals = {name: weakref.ref(swap) for name, swap in state["removals"].items()}
        self.removal = weakref.ref(state["removal"]) if state["removal"] is not None else None
        for name, child in self.children.items():
            node = node_of(child)
            if node is not None and (name in owns or node._owner is None):
                node._owner, node.name = self.module, name
        self._filled += [slot for slot in self.slots if slot.layer is not None]
        for slot in self._filled:
            self._positions.setdefault(id(slot.layer), []).append(slot)
            node = node_of(slot.layer)
            if node is not None and (slot.order in calls or node._parent is None):
                node._parent = self.module

    # Wiring

    def filled(self) -> Iterator[Slot]:
        return iter(self._filled)

    @property
    def length(self) -> int:
        """How many layers are wired."""
        return len(self._filled)

    def slot_at(self, position: int) -> Slot:
        """The filled slot at a position, which may be negative. Raises `IndexError`."""
        return self._filled[position]

    def slots_of(self, layer: object) -> list[Slot]:
        """The slots that hold `layer`."""
        return self._positions.get(id(layer), [])

    def position(self, slot: Slot) -> int:
        """Where a slot stands among all, the empty ones too."""
        return bisect_left(self.slots, slot.order, key=_by_order)

    def insert(self, position: int, slot: Slot) -> None:
        """Puts in an empty slot, between two whose order does not change by that."""
        before = self.slots[position - 1].order if position else 0
        after = self.slots[position].order if position < len(self.slots) else before + 2 * _GAP
        slot.order = (before + after) // 2
        self.slots.insert(position, slot)
        if slot.order == before:
            for number, each in enumerate(self.slots, start=1):
                each.order = number * _GAP

    def remove(self, slot: Slot) -> None:
        """Takes out an empty slot."""
        del self.slots[self.position(slot)]

    def fill(self, slot: Slot, layer: nn.Module | None, name: str, home: Composite | None) -> None:
        """Fills a slot of this node."""
        if slot.layer is not None:
            self._positions[id(slot.layer)].remove(slot)
            if not self._positions[id(slot.layer)]:
                del self._positions[id(slot.layer)]
        if layer is not None:
            self._positions.setdefault(id(layer), []).append(slot)
        if layer is None and slot.layer is not None:
            del self._filled[bisect_left(self._filled, slot.order, key=_by_order)]
        if layer is not None and slot.layer is None:
            insort(self._filled, slot, key=_by_order)
        slot.handed_on = layer is not None and (self if home is None else home.node).hands_on_to == name
        slot.fill(layer, name, home)

    def touch(self) -> None:
        """Marks an edit, here and in every composite around, by a number that no other structure has."""
        node: Node | None = self
        version = next(_versions)
        while node is not None:
            node.version = version
            node = node_of(node.parent)

    # Ownership

    @property
    def path(self) -> str:
        names: list[str] = []
        node = self
        while (owner := node.owner) is not None:
            names.append(node.name)
            node = owner.node
        return ".".join(filter(None, [node.path_around, *reversed(names)]))


def children_of(module: nn.Module) -> dict[str, nn.Module]:
    """What a composite or a plain module owns, by name; a module that is there twice has two names."""
    children: dict[str, nn.Module | None] = vars(module)["_modules"]
    return {name: child for name, child in children.items() if child is not None}


def node_of(layer: nn.Module | None) -> Node | None:
    """The node of a composite; None for a leaf."""
    node = layer.__dict__.get("node") if layer is not None else None
    return node if isinstance(node, Node) else None
