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

from suture.layers.context import Context, Derived, Read, as_read

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.swaps import Swap

_LATE = "links that wait for the node"
_versions = itertools.count(1)
_NAME = re.compile(r"[A-Za-z0-9_]+(\+[A-Za-z0-9_]+)*")


class Wired:
    """The base of composites, by which slots and nodes know them."""

    node: Node


class Slot:
    """One place in a wiring. It keeps its position while empty, so that what was taken out can return."""

    __slots__ = ("call", "changes", "home", "layer", "name", "plain", "reads")

    layer: nn.Module | None
    reads: tuple[tuple[str, Read | Derived], ...] | None
    """What the leaf reads from the context; None where the layer takes the context itself."""
    plain: bool
    """Whether the layer is called with its arguments and nothing else."""
    call: Any
    """What is called; None for an empty slot, or one that was not prepared yet."""

    def __init__(self) -> None:
        self.changes: list[weakref.ref[Swap]] = []
        self.fill(None, "", None)

    def fill(self, layer: nn.Module | None, name: str, home: Composite | None) -> None:
        """Puts `layer`, owned as `name` by `home` (None: by the composite of this slot), in this place."""
        self.layer, self.name, self.home = layer, name, home
        self.prepare()

    def prepare(self) -> Any:
        """Finds how the layer is called, and gives what is called."""
        layer = self.layer
        self.call, self.reads, self.plain = None, None, False
        if isinstance(layer, Wired):
            # A composite inside a tree is called past the override that serves the outermost one.
            self.call = MethodType(nn.Module.__call__, layer)
        elif layer is not None:
            self.call = layer.__call__
            declared: dict[str, Any] = getattr(layer, "reads", {})
            self.reads = tuple((keyword, as_read(read)) for keyword, read in declared.items())
            self.plain = not self.reads
        return self.call

    def invoke(self, args: tuple[Any, ...], context: Context) -> Any:
        """Calls the layer as it wants to be called."""
        call = self.call or self.prepare()
        if self.reads is None:
            return call(*args, context=context)
        return call(*args, **{keyword: context.read(read) for keyword, read in self.reads})

    @property
    def swaps(self) -> list[Swap]:
        """The changes of this slot that can still be undone, oldest first."""
        return [swap for reference in self.changes if (swap := reference()) is not None and swap.live]

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.layer, self.name, self.home, self.swaps)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.layer, self.name, self.home, swaps = state
        self.changes = [weakref.ref(swap) for swap in swaps]
        # The layer may not be complete yet, where a copy or a file holds a cycle: it is looked at when first called.
        self.call, self.reads, self.plain = None, None, False


class Node:
    """The place of one composite in its tree. `children` is torch's own dictionary of what the composite owns."""

    def __init__(self, module: Composite, children: dict[str, nn.Module | None]) -> None:
        self.children = children
        self.slots: list[Slot] = []
        self.names: dict[str, weakref.ref[Swap] | None] = {}
        self.version = next(_versions)
        self.shares_leaves = False
        self.cached: tuple[int, Any] | None = None
        self.name = ""
        self._parent: weakref.ref[Composite] | None = None
        self._owner: weakref.ref[Composite] | None = None
        self.module = weakref.ref(module)

    # Links upwards are weak, so that a tree without edits holds no reference cycle and is freed at once.

    @property
    def parent(self) -> Composite | None:
        return self._parent() if self._parent is not None else None

    @parent.setter
    def parent(self, parent: Composite | None) -> None:
        self._parent = None if parent is None else weakref.ref(parent)

    @property
    def owner(self) -> Composite | None:
        return self._owner() if self._owner is not None else None

    def link(self, module: Composite) -> None:
        """Restores the weak links after a copy."""
        self.module = weakref.ref(module)
        self.__dict__.update(module.__dict__.pop(_LATE, {}))
        for name in self.__dict__.pop("home_of"):
            _set_links(self.children[name], _owner=self.module, name=name)
        positions: list[int] = self.__dict__.pop("parent_of")
        for position in positions:
            _set_links(self.slots[position].layer, _parent=self.module)

    def __getstate__(self) -> dict[str, Any]:
        module = self.module()
        nodes = {name: node_of(child) for name, child in self.children.items()}
        return self.__dict__ | {
            "_parent": None,
            "_owner": None,
            "name": "",
            "module": None,
            "cached": None,
            "names": dict.fromkeys(self.names),
            "home_of": [name for name, node in nodes.items() if node is not None and node.owner is module],
            "parent_of": [
                position
                for position, slot in enumerate(self.slots)
                if (node := node_of(slot.layer)) is not None and node.parent is module
            ],
        }

    # Wiring

    def filled(self) -> Iterator[Slot]:
        return (slot for slot in self.slots if slot.layer is not None)

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
        while (owner := node_of(node.owner)) is not None:
            names.append(node.name)
            node = owner
        return ".".join(reversed(names))

    def own(self, name: str, layer: nn.Module, *, borrowed: bool = False) -> None:
        """Owns `layer` as `name`; a name that returns takes its old position among the others."""
        known = name in self.names
        self.names[name] = None
        present = name in self.children
        self.children[name] = layer
        if known and not present:
            later = list(self.names)[list(self.names).index(name) + 1 :]
            for other in later:
                if other in self.children:
                    self.children[other] = self.children.pop(other)
        if not borrowed and (node := node_of(layer)) is not None:
            node._owner, node.name = self.module, name

    def disown(self, name: str) -> None:
        layer = self.children.pop(name)
        node = node_of(layer)
        if node is not None and node.name == name and node.owner is self.module():
            node._owner, node.name = None, ""

    def is_free(self, name: str) -> bool:
        """Whether `name` can be given: it is not owned, and nothing that had it can come back."""
        if name in self.children:
            return False
        removal = self.names.get(name)
        swap = removal() if removal is not None else None
        return swap is None or not swap.live

    def unused(self, base: str, first: bool = True) -> str:
        """`base`, or `base_2`, `base_3`, ...: the first that was never given."""
        if first and base not in self.names:
            return base
        number = 2
        while f"{base}_{number}" in self.names:
            number += 1
        return f"{base}_{number}"


def node_of(layer: nn.Module | None) -> Node | None:
    """The node of a composite; None for a leaf."""
    return layer.__dict__.get("node") if isinstance(layer, Wired) else None


def _set_links(layer: nn.Module | None, **links: Any) -> None:
    """Sets links of a composite now or, where a cycle has it not complete yet, when it is."""
    node = node_of(layer)
    if node is not None:
        node.__dict__.update(links)
    elif layer is not None:
        layer.__dict__.setdefault(_LATE, {}).update(links)


def check_name(name: str, owner: type[nn.Module]) -> None:
    """Refuses a name that cannot be part of a path or would hide an attribute of the class."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"A layer cannot be named {name!r}: a name is made of letters, digits and underscores, "
            f"because it is a part of paths and of checkpoint keys."
        )
    if hasattr(owner, name) or name in ("training", "node"):
        raise ValueError(
            f"A layer of {owner.__name__} cannot be named {name!r}: it would hide {owner.__name__}.{name}. "
            f"Choose another name, such as {name + '_layer'!r}."
        )
