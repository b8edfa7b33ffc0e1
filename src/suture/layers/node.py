"""The bookkeeping of one composite: what it wires, in which order, and under which names it owns layers.

Wiring and ownership are two things. A `Slot` is one place in the wiring. The layer in it is owned either by the same
composite or, when an edit has put a layer around one that was already there, by the composite that owned it before.
A name is a layer's home and key for ever; no edit renames a layer it did not bring.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any

from torch import nn

from suture.layers.context import HANDED_ON, Context, Derived, Read, as_read

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.swap import Swap

_versions = itertools.count(1)
_NAME = re.compile(r"[A-Za-z0-9_]+(\+[A-Za-z0-9_]+)*")


class Slot:
    """One place in a wiring. It keeps its position while empty, so that what was taken out can return."""

    __slots__ = ("call", "changes", "handed_on", "home", "layer", "name", "plain", "reads", "used")

    layer: nn.Module | None
    reads: tuple[tuple[str, Read | Derived], ...] | None
    """What the leaf reads from the context; None where the layer takes the context itself."""
    plain: bool
    """Whether the layer is called with its arguments and nothing else."""
    call: Any
    """What is called; None for an empty slot, or one that was not prepared yet."""

    def __init__(self) -> None:
        self.changes: list[weakref.ref[Swap]] = []
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
            self.call = MethodType(nn.Module.__call__, layer)
        elif layer is not None:
            self.call = layer.__call__
            declared: dict[str, Any] = getattr(layer, "reads", {})
            self.reads = tuple((keyword, as_read(read)) for keyword, read in declared.items())
            self.plain = not self.reads and not self.handed_on
        return self.call

    def invoke(self, args: tuple[Any, ...], context: Context) -> Any:
        """Calls the layer as it wants to be called."""
        call = self.call or self.prepare()
        keywords: dict[str, Any] = {}
        if self.handed_on:
            further, keywords = context.read(HANDED_ON)
            args = (*args, *further)
        if self.reads is None:
            return call(*args, context=context)
        return call(*args, **keywords, **{keyword: context.read(read) for keyword, read in self.reads})

    @property
    def swaps(self) -> list[Swap]:
        """The changes of this slot that can still be undone, oldest first."""
        return [swap for reference in self.changes if (swap := reference()) is not None and swap.live]

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.layer, self.name, self.home, self.used, self.handed_on, self.swaps)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.layer, self.name, self.home, self.used, self.handed_on, swaps = state
        self.changes = [weakref.ref(swap) for swap in swaps]
        # The layer may not be complete yet, where a copy or a file holds a cycle: it is looked at when first called.
        self.call, self.reads, self.plain = None, None, False


class Node:
    """The place of one composite in its tree. It exists before the composite has been initialised."""

    def __init__(self, module: Composite) -> None:
        self.module = weakref.ref(module)
        self.children: dict[str, nn.Module | None] = {}
        """torch's own dictionary of what the composite owns."""
        self.slots: list[Slot] = []
        self.names: dict[str, weakref.ref[Swap] | None] = {}
        """Every name that was given, in order, with the last swap that took it away."""
        self.uses: dict[str, int] = {}
        """How many slots call what is owned here under a name: what nothing calls is not owned."""
        self.version = next(_versions)
        self.shares_leaves = False
        self.only_home = False
        """Whether it was taken out of the wiring, but for layers in it that are still called."""
        self.cached: tuple[int, Any] | None = None
        self.path_around = ""
        """The path of the plain module that this composite stands in, where that is known."""
        self.hands_on_to: str | None = None
        """The name of the layer here that gets what a plain module's call gives beyond its first argument."""
        self._positions: dict[int, list[Slot]] = {}
        self._empty = 0
        self._numbers: dict[str, int] = {}
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
        names = {name: removal() if removal is not None else None for name, removal in self.names.items()}
        # A home that nothing calls any more is found again by what returns to it.
        waiting = self.owner is None and (self.only_home or self.parent is not None)
        links: dict[str, Any] = {"module": None, "_parent": None, "_owner": self.last_owner if waiting else None}
        return self.__dict__ | {"names": names, "cached": None, "_positions": None} | links

    def restore(self, state: dict[str, Any]) -> None:
        """Takes the state of a copied or unpickled node. It links what is below; the links upwards come from there."""
        links: dict[str, Any] = {
            "module": self.module,
            "_parent": self._parent,
            "_owner": self._owner,
            "_positions": {},
        }
        self.__dict__.update(state | links)
        if (owner := state["_owner"]) is not None:
            self.last_owner = owner
        self.names = {name: weakref.ref(swap) if swap is not None else None for name, swap in state["names"].items()}
        for name, child in self.children.items():
            if (node := node_of(child)) is not None:
                node._owner, node.name = self.module, name
        for slot in self.filled():
            self._positions.setdefault(id(slot.layer), []).append(slot)
            node = node_of(slot.layer)
            if node is not None and (slot.used or node._parent is None):
                node._parent = self.module

    # Wiring

    def filled(self) -> Iterator[Slot]:
        return (slot for slot in self.slots if slot.layer is not None)

    @property
    def length(self) -> int:
        """How many layers are wired."""
        return len(self.slots) - self._empty

    def slot_at(self, position: int) -> Slot:
        """The filled slot at a position, which may be negative. Raises `IndexError`."""
        return self.slots[position] if not self._empty else list(self.filled())[position]

    def slots_of(self, layer: object) -> list[Slot]:
        """The slots that hold `layer`."""
        return self._positions.get(id(layer), [])

    def insert(self, position: int, slot: Slot) -> None:
        """Puts in an empty slot."""
        self.slots.insert(position, slot)
        self._empty += 1

    def remove(self, slot: Slot) -> None:
        """Takes out an empty slot."""
        self.slots.remove(slot)
        self._empty -= 1

    def fill(self, slot: Slot, layer: nn.Module | None, name: str, home: Composite | None) -> None:
        """Fills a slot of this node."""
        if slot.layer is not None:
            self._positions[id(slot.layer)].remove(slot)
            if not self._positions[id(slot.layer)]:
                del self._positions[id(slot.layer)]
        if layer is not None:
            self._positions.setdefault(id(layer), []).append(slot)
        self._empty += (layer is None) - (slot.layer is None)
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

    def own(self, name: str, layer: nn.Module | None) -> None:
        """Owns `layer` as `name`; a name that returns takes its old position among the others."""
        returns = name in self.names and name not in self.children
        self.names.setdefault(name, None)
        self.children[name] = layer
        if returns:
            later = list(self.names)[list(self.names).index(name) + 1 :]
            for other in later:
                if other in self.children:
                    self.children[other] = self.children.pop(other)

    def count(self, slot: Slot, name: str, by: int) -> None:
        """Counts a slot in (+1) or out (-1) among those for which something is owned as `name`."""
        slot.used = by > 0
        self.uses[name] = self.uses.get(name, 0) + by
        if not self.uses[name]:
            del self.uses[name]

    def is_free(self, name: str) -> bool:
        """Whether `name` can be given: it is not owned, and nothing that had it can come back."""
        return name not in self.children and self.last_removal(name) is None

    def last_removal(self, name: str) -> Swap | None:
        """The last swap that took a name away, if it can be undone and the name is not owned."""
        removal = self.names.get(name) if name not in self.children else None
        swap = removal() if removal is not None else None
        return swap if swap is not None and swap.live else None

    def unused(self, base: str) -> str:
        """`base`, or `base_2`, `base_3`, ...: the first that was never given."""
        if base not in self.names:
            return base
        number = self._numbers.get(base, 2)
        while f"{base}_{number}" in self.names:
            number += 1
        self._numbers[base] = number
        return f"{base}_{number}"

    def forget(self, name: str) -> None:
        """Makes a name as if it had never been given."""
        del self.names[name]
        self._numbers.clear()


def children_of(module: nn.Module) -> dict[str, nn.Module]:
    """What a composite or a plain module owns, by name; a module that is there twice has two names."""
    children: dict[str, nn.Module | None] = vars(module)["_modules"]
    return {name: child for name, child in children.items() if child is not None}


def node_of(layer: nn.Module | None) -> Node | None:
    """The node of a composite; None for a leaf."""
    node = layer.__dict__.get("node") if layer is not None else None
    return node if isinstance(node, Node) else None


def check_name(name: str, owner: nn.Module) -> None:
    """Refuses a name that cannot be part of a path or would hide an attribute of its owner."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"A layer cannot be named {name!r}: a name is made of letters, digits and underscores, "
            f"because it is a part of paths and of checkpoint keys."
        )
    kind = type(owner)
    tensors = (*dict(owner.named_parameters(recurse=False)), *dict(owner.named_buffers(recurse=False)))
    if hasattr(kind, name) or name in owner.__dict__ or name in tensors:
        raise ValueError(
            f"A layer of {kind.__name__} cannot be named {name!r}: it would hide {kind.__name__}.{name}. "
            f"Choose another name, such as {name + '_layer'!r}."
        )
