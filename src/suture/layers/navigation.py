"""Reading and editing a tree: the methods of every composite that find, walk, put in and take out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

from torch import nn

from suture.layers import edit
from suture.layers.edit import Edit
from suture.layers.names import check_name
from suture.layers.node import Node, Slot, node_of
from suture.layers.recording import recording

if TYPE_CHECKING:
    from suture.layers.composite import Composite

T = TypeVar("T", bound=nn.Module)
Kind = type[T] | tuple[type[T], ...]
Predicate = Callable[[nn.Module, Any], bool]


@dataclass(frozen=True)
class Place:
    """A layer where it is wired: its path (its home), the composite that calls it, and how deep it stands."""

    path: str
    layer: nn.Module
    parent: Composite
    slot: Slot
    depth: int


class Navigation:
    """What a composite offers for its structure. Paths go by ownership, positions and iteration by wiring."""

    node: Node

    # Reading

    def __len__(self) -> int:
        return self.node.length

    def __iter__(self) -> Iterator[nn.Module]:
        return iter([slot.layer for slot in self.node.filled() if slot.layer is not None])

    def places(self) -> Iterator[Place]:
        """Every layer below, where it is wired, depth first in the order of calling."""
        yield from _places(cast("Composite", self), "", 1, {})

    @overload
    def walk(self, kind: None = None) -> list[tuple[nn.Module, Composite]]: ...
    @overload
    def walk(self, kind: Kind[T]) -> list[tuple[T, Composite]]: ...
    @overload
    def walk(self, kind: Predicate) -> list[tuple[nn.Module, Composite]]: ...
    def walk(self, kind: Any = None) -> list[tuple[Any, Composite]]:
        """Every layer below with the composite that calls it, depth first.

        Args:
            kind: a class, a tuple of classes, or a function of a layer and its parent; None for all.
        """
        if kind is None:
            return [(place.layer, place.parent) for place in self.places()]
        if isinstance(kind, type | tuple):
            return [(place.layer, place.parent) for place in self.places() if isinstance(place.layer, kind)]
        return [(place.layer, place.parent) for place in self.places() if kind(place.layer, place.parent)]

    def layers(self, kind: Kind[T]) -> list[T]:
        """Every layer of a class below. The list is made now: editing while going through it is safe.

        >>> from suture import layers as sl
        >>> model = sl.Chain(sl.Linear(2, 4), sl.Residual(sl.Linear(4, 4)))
        >>> [linear.in_features for linear in model.layers(sl.Linear)]
        [2, 4]
        """
        return [layer for layer, _ in self.walk(kind)]

    def find(self, kind: Kind[T]) -> T | None:
        """The first layer of a class below, or None."""
        return next(iter(self.layers(kind)), None)

    def ensure_find(self, kind: Kind[T]) -> T:
        """The first layer of a class below. Raises `LookupError` where there is none."""
        found = self.find(kind)
        if found is None:
            names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
            present = sorted({type(layer).__name__ for layer, _ in self.walk()})
            raise LookupError(f"There is no {names} in this {type(self).__name__}. It holds: {', '.join(present)}.")
        return found

    def find_parent(self, layer: nn.Module) -> Composite | None:
        """The composite below, or this one, that calls `layer`; None where nothing does."""
        return next((parent for found, parent in self.walk() if found is layer), None)

    def layer(self, path: str, kind: type[T] = nn.Module) -> T:
        """The layer owned at `path`. Raises `KeyError` for no such path, `TypeError` for a layer of another class."""
        found = self[path]
        if not isinstance(found, kind):
            raise TypeError(f"The layer at {path!r} is a {type(found).__name__}, not a {kind.__name__}.")
        return found

    @overload
    def __getitem__(self, where: int | str) -> nn.Module: ...
    @overload
    def __getitem__(self, where: slice) -> Self: ...
    def __getitem__(self, where: int | str | slice) -> nn.Module | Self:
        """By position the layer wired there, by path the layer owned there, by slice a structural copy of a part."""
        if isinstance(where, str):
            return self._owned_at(where)
        if isinstance(where, slice):
            return self._part(where)
        return cast("nn.Module", self._slot_at(where).layer)

    def _owned_at(self, path: str) -> nn.Module:
        layer: nn.Module = cast("Composite", self)
        for name in path.split("."):
            # Ownership is torch's own dictionary, so a path goes through plain modules as well.
            children: dict[str, nn.Module] = dict(layer.named_children()) if node_of(layer) is None else _owned(layer)
            if name not in children:
                raise KeyError(
                    f"There is no layer at {path!r}: {type(layer).__name__} has no {name!r}. "
                    f"It has: {', '.join(children) or 'nothing'}."
                )
            layer = children[name]
        return layer

    def _part(self, where: slice) -> Self:
        copied = cast("Composite", self).structural_copy()
        slots = list(copied.node.filled())
        kept = slots[where]
        for slot in slots:
            if slot not in kept:
                edit.swap(copied, slot, None)
        return cast("Self", copied)

    def _slot_at(self, position: int) -> Slot:
        try:
            return self.node.slot_at(position)
        except IndexError:
            raise IndexError(
                f"There is no layer {position} in this {type(self).__name__}, which has {len(self)}."
            ) from None

    def slot_of(self, layer: object) -> Slot:
        """The one place at which a child is called. Raises `LookupError` for no child, `ValueError` for several."""
        slots = self.node.slots_of(layer)
        if len(slots) == 1:
            return slots[0]
        if slots:
            raise ValueError(
                f"{type(layer).__name__} stands at {len(slots)} places in this {type(self).__name__}, as "
                f"{', '.join(repr(slot.name) for slot in slots)}. Say which by position or by name."
            )
        parent = self.find_parent(layer) if isinstance(layer, nn.Module) else None
        elsewhere = f" It is a child of {parent.path!r}, deeper in; call that one's method." if parent else ""
        raise LookupError(f"{describe_layer(layer)} is not a child of this {type(self).__name__}.{elsewhere}")

    # Editing

    def insert(self, position: int, layer: nn.Module, name: str | None = None) -> Edit:
        """Puts `layer` before the one at `position`, as `list.insert` does."""
        if not -len(self) <= position < len(self):
            position = 0 if position < 0 else len(self)
        if position == len(self):
            return self.append(layer, name)
        following = self.node.slot_at(position)
        return self._insert_at(self.node.position(following), layer, name)

    def insert_before(self, present: nn.Module, layer: nn.Module, name: str | None = None) -> Edit:
        """Puts `layer` before the child `present`."""
        return self._insert_at(self.node.position(self.slot_of(present)), layer, name)

    def insert_after(self, present: nn.Module, layer: nn.Module, name: str | None = None) -> Edit:
        """Puts `layer` after the child `present`."""
        return self._insert_at(self.node.position(self.slot_of(present)) + 1, layer, name)

    def append(self, layer: nn.Module, name: str | None = None) -> Edit:
        """Puts `layer` at the end."""
        return self._insert_at(len(self.node.slots), layer, name)

    def pop(self, position: int = -1) -> Edit:
        """Takes out the layer at `position`; it is the edit's only layer."""
        return edit.swap(cast("Composite", self), self._slot_at(position), None)

    def remove(self, layer: nn.Module) -> Edit:
        """Takes out a child."""
        return edit.swap(cast("Composite", self), self.slot_of(layer), None)

    def replace(self, old: nn.Module, new: nn.Module) -> Edit:
        """Puts `new` where the child `old` stands.

        `new` may hold `old`, or layers of it: those keep their names and their keys. `new` is then owned beside `old`
        as `old+ClassName`; otherwise it takes the name of `old`.

        Raises:
            LookupError: `old` is not a child.
            EditError: a composite in `new` stands somewhere else too.

        >>> from suture import layers as sl
        >>> model = sl.Chain(query=sl.Linear(2, 2))
        >>> edit = model.replace(model.query, sl.Sum(model.query, sl.Linear(2, 2, bias=False)))
        >>> list(model.state_dict())
        ['query.weight', 'query.bias', 'query+Sum.Linear_2.weight']
        >>> edit.undo()
        >>> list(model.state_dict())
        ['query.weight', 'query.bias']
        """
        slot = self.slot_of(old)
        if new is old:
            raise ValueError(f"{describe_layer(old)} stands at this place already.")
        return edit.swap(cast("Composite", self), slot, checked(new))

    def __setitem__(self, where: int | str, layer: nn.Module) -> None:
        """Replaces the layer at a position or of a name; a new name is put at the end."""
        composite = cast("Composite", self)
        if isinstance(where, int):
            edit.swap(composite, self._slot_at(where), checked(layer))
            return
        around, _, name = where.rpartition(".")
        if around:
            owner = self._owned_at(around)
            if not isinstance(owner, Navigation):
                raise TypeError(f"{type(owner).__name__} at {around!r} is a plain module: set its attribute instead.")
            owner[name] = layer
            return
        slot = self._slot_named(where)
        if slot is not None:
            edit.swap(composite, slot, checked(layer))
        else:
            self._insert_at(len(self.node.slots), layer, where)

    def __delitem__(self, where: int | str | slice) -> None:
        """Takes out the layer at a position or of a name, or the layers of a slice."""
        if isinstance(where, slice):
            with recording():
                for slot in list(self.node.filled())[where]:
                    edit.swap(cast("Composite", self), slot, None)
            return
        if isinstance(where, int):
            self.pop(where)
            return
        slot = self._slot_named(where)
        if slot is None:
            self._owned_at(where)
            raise KeyError(f"{where!r} is not called by this {type(self).__name__} itself; take it out where it is.")
        edit.swap(cast("Composite", self), slot, None)

    def _slot_named(self, name: str) -> Slot | None:
        return next((slot for slot in self.node.filled() if slot.name == name and slot.home is None), None)

    def _insert_at(self, index: int, layer: nn.Module, name: str | None) -> Edit:
        if name is not None:
            check_name(name, cast("Composite", self))
            if not self.node.is_free(name):
                raise ValueError(
                    f"The name {name!r} is taken in this {type(self).__name__}, by a layer or by one that was taken "
                    f"out and can still return. Choose another."
                )
        return edit.insert(cast("Composite", self), index, checked(layer), name)


def checked(layer: object) -> nn.Module:
    """Refuses what is no module."""
    if isinstance(layer, type):
        raise TypeError(
            f"A layer is a module. Received: the class {layer.__name__}; give an instance, {layer.__name__}()."
        )
    if not isinstance(layer, nn.Module):
        raise TypeError(f"A layer is a module. Received: {layer!r:.80} ({type(layer).__name__}).")
    return layer


def describe_layer(layer: object) -> str:
    """A layer as it is named in errors."""
    return type(layer).__name__ if isinstance(layer, nn.Module) else f"{layer!r:.60}"


def _owned(layer: nn.Module) -> dict[str, nn.Module]:
    node = node_of(layer)
    return {name: child for name, child in (node.children if node is not None else {}).items() if child is not None}


def _places(composite: Composite, path: str, depth: int, paths: dict[int, str]) -> Iterator[Place]:
    paths[id(composite)] = path
    for slot in list(composite.node.filled()):
        if slot.layer is None:
            continue
        home = path if slot.home is None else path_below(slot.home, paths)
        inner = f"{home}.{slot.name}" if home else slot.name
        yield Place(inner, slot.layer, composite, slot, depth)
        node = node_of(slot.layer)
        module = node.module() if node is not None else None
        if module is not None:
            yield from _places(module, inner, depth + 1, paths)


def path_below(home: Composite, paths: dict[int, str]) -> str:
    """The path of a home from the root of the walk, whether it is wired or only owned."""
    if id(home) not in paths:
        owner = home.node.owner
        around = path_below(owner, paths) if owner is not None else ""
        paths[id(home)] = f"{around}.{home.node.name}" if around else home.node.name
    return paths[id(home)]
