"""The edits made to a model as data, which are made again on a fresh one.

A recipe is JSON. It says what was done, where, and with which layers: names of registered classes and what they were
made with. It holds no code, no weights, and nothing that is looked up by name other than registered classes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import nn

from suture.layers import edit
from suture.layers.composite import Composite
from suture.layers.description import Described, DescriptionError, Reference, Unknown, build
from suture.layers.edit import Edit
from suture.layers.history import Entry, History, slots_of
from suture.layers.mount import Mount, mount
from suture.layers.node import Slot, children_of, node_of
from suture.layers.ownership import home_of
from suture.layers.recording import EditError, borrowing, recording
from suture.surgery.adapter import Adapter

VERSION = 1
Site = tuple[Composite, Slot]


class RecipeError(ValueError):
    """Edits that cannot be told or made again; the message says which, where, and what to do. Nothing was changed."""


def recipe(model: nn.Module) -> Recipe:
    """The edits that stand in a model, in the order in which they were made.

    Args:
        model: A tree, or a plain module with trees and edited places in it.

    Raises:
        RecipeError: An edit put in a layer that has no description, or the model is a part of a tree.

    Example:
        >>> from suture import layers as sl
        >>> model = sl.Chain(up=sl.Linear(2, 4), down=sl.Linear(4, 2))
        >>> edit = model.insert_after(model["up"], sl.SiLU())
        >>> recipe(model)
        Recipe(insert SiLU after up)
        >>> fresh = sl.Chain(up=sl.Linear(2, 4), down=sl.Linear(4, 2))
        >>> _ = recipe(model).apply(fresh)
        >>> [place.path for place in fresh.places()]
        ['up', 'SiLU', 'down']
    """
    node = node_of(model)
    if node is not None and node.parent is not None:
        raise RecipeError(
            f"The {type(model).__name__} is at {node.path!r} in its tree. Take the recipe of the whole model."
        )
    if isinstance(model, Adapter) and model.is_injected:
        raise RecipeError(
            f"The model itself is the adapter {type(model).__name__}, which is around the root, where no fresh model "
            "has a place for it. Eject it, take the recipe, and inject it again after apply()."
        )
    found = [(entry.number, told) for root in _roots(model) for entry, told in _Telling(root).entries()]
    return Recipe([told for _, told in sorted(found, key=lambda each: each[0])])


class Recipe:
    """Edits as data. `suture.recipe(model)` gives one."""

    def __init__(self, edits: Sequence[Mapping[str, Any]]) -> None:
        self.edits = tuple(edits)

    def apply(self, model: nn.Module) -> Edit:
        """Makes the edits on a model, and gives them as one that can be undone.

        Edits that the model has already, because it was built with them, are not made twice.

        Raises:
            RecipeError: A place is not there, a class is not registered, or all edits are made already. The model is
                as it was.
        """
        done = self._done(model)
        if done and done == len(self.edits):
            raise RecipeError(f"The model has the {done} edits of this recipe already.")
        with recording() as record, borrowing():
            for number, told in enumerate(self.edits[done:], start=done + 1):
                try:
                    _Making(model, told).make()
                except (LookupError, TypeError, ValueError, EditError, AttributeError) as error:
                    raise RecipeError(
                        f"Edit {number} of the recipe, {_summary(told)}, cannot be made: {error}"
                    ) from error
        return Edit(list(record.swaps))

    def _done(self, model: nn.Module) -> int:
        """How many of the first edits the model has."""
        try:
            made = recipe(model).edits
        except RecipeError:
            return 0
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self.edits, made, strict=False))
        return sum(1 for _ in same)

    def save(self, path: Path | str) -> None:
        """Writes the recipe as JSON; a crash leaves an older file whole."""
        path = Path(path)
        content = {"format": "suture.recipe", "version": VERSION, "edits": self.edits}
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        beside.replace(path)

    @classmethod
    def load(cls, path: Path | str) -> Recipe:
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: There is no such file.
            RecipeError: It is no recipe, or of another version.
        """
        try:
            content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise RecipeError(f"{path} is no JSON: {error}. Was it cut short?") from error
        match content:
            case {"format": "suture.recipe", "version": version, "edits": list(edits)} if version == VERSION:
                told = cast("list[Any]", edits)
                if all(isinstance(each, dict) for each in told):
                    return cls(told)
            case {"format": "suture.recipe", "version": version}:
                raise RecipeError(
                    f"{path} is a recipe of version {version!r}, where {VERSION} can be read. Update Suture."
                )
            case _:
                pass
        raise RecipeError(f"{path} is no recipe: it does not hold the edits of one. Was it written by Recipe.save?")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.edits == other.edits

    __hash__ = None

    def __len__(self) -> int:
        return len(self.edits)

    def __repr__(self) -> str:
        return f"Recipe({'; '.join(map(_summary, self.edits)) or 'nothing'})"


def _summary(told: Mapping[str, Any]) -> str:
    """An edit in a few words."""
    operation = str(told.get("do"))
    layer: Any = told.get("layer", {})
    inner = f" {layer.get('class') or layer.get('layer') or layer.get('copy')}" if isinstance(layer, dict) else ""
    place = f"{told.get('at', '')}"
    match operation:
        case "insert":
            after: Any = told.get("after")
            where = f" after {after['slot']}" if isinstance(after, dict) else " first"
            return f"insert{inner}{where}" + (f" in {place}" if place else "")
        case "remove":
            return f"remove {place}"
        case "adapt":
            return f"adapt {place} by{inner}"
        case _:
            return f"{operation} {place} by{inner}"


# Where the trees of a model are


def _roots(model: nn.Module) -> Iterator[_Root]:
    """The composites of a model that have a history, with their logical paths."""
    seen: set[int] = set()

    def below(module: nn.Module, path: str, around: str, is_in_tree: bool) -> Iterator[_Root]:
        if id(module) in seen:
            return
        seen.add(id(module))
        node = node_of(module)
        if node is not None and node.history is not None and not is_in_tree:
            yield _Root(cast("Composite", module), path, isinstance(module, Mount))
        inside = around if isinstance(module, Mount) else path
        for name, child in children_of(module).items():
            inner = ".".join(filter(None, [inside, name]))
            yield from below(child, inner, inside, node is not None and node_of(child) is not None)

    yield from below(model, "", "", False)


class _Root:
    """The root of a tree in a model: the model, a composite in a plain module, or the mount of a layer of one."""

    def __init__(self, composite: Composite, path: str, is_mount: bool) -> None:
        self.composite = composite
        self.path = path
        self.is_mount = is_mount


# Telling


class _Telling:
    """Turns the entries of one tree into JSON."""

    def __init__(self, root: _Root) -> None:
        self._root = root
        history = root.composite.node.history
        self._entries = history.entries if history is not None else []
        self._leaves: dict[int, list[str]] = {}
        for place in root.composite.places():
            if node_of(place.layer) is None:
                self._leaves.setdefault(id(place.layer), []).append(place.path)
        self._given = [(entry.number, path) for entry in self._entries for path in _given_by(entry)]

    def entries(self) -> Iterator[tuple[Entry, dict[str, Any]]]:
        where = {"in": self._root.path, "mounted": self._root.is_mount} if self._root.path else {}
        for entry in self._entries:
            yield entry, where | self.told(entry)

    def told(self, entry: Entry) -> dict[str, Any]:
        told: dict[str, Any] = {"do": entry.operation}
        place = self._known(entry.place, entry)
        told["at"] = place.path
        if place.number is not None:
            told["number"] = place.number
        if entry.operation == "insert":
            (after,) = entry.after.values()
            told["after"] = None if after is None else _slot(after)
        if entry.operation == "adapt":
            told["names"] = entry.names
        elif entry.operation != "remove":
            told["as"] = entry.names[0]
        if entry.what is not None:
            told["layer"] = self._content(entry.what, entry)
        return told

    def _content(self, content: Any, entry: Entry) -> Any:
        match content:
            case Unknown():
                raise RecipeError(
                    f"The {entry.operation} at {_where(entry)!r} cannot be told: {content.reason}. Everything else works "
                    "as before; undo that edit to get a recipe of the others."
                )
            case Reference():
                return _layer(content)
            case Described():
                shared = self._shared(content, entry)
                return shared if shared is not None else self._content(content.content, entry)
            case History():
                return [self.told(each) for each in content.entries]
            case dict():
                inner = cast("dict[str, Any]", content)
                if isinstance(original := inner.get("copy"), Reference):
                    return {"copy": original.path}
                return {key: self._content(value, entry) for key, value in inner.items()}
            case list():
                return [self._content(value, entry) for value in cast("list[Any]", content)]
            case _:
                return content

    def _known(self, place: Reference | Unknown, entry: Entry) -> Reference:
        if isinstance(place, Unknown):
            self._content(place, entry)
            raise RecipeError(place.reason)
        return place

    def _shared(self, described: Described, entry: Entry) -> dict[str, Any] | None:
        """A leaf that the tree had already, where it was."""
        layer = described.held.layer
        for path in self._leaves.get(id(layer), ()) if layer is not None else ():
            givers = [number for number, given in self._given if path == given or path.startswith(f"{given}.")]
            if not givers or max(givers) < entry.number:
                return {"layer": path}
        return None


def _given_by(entry: Entry) -> Iterator[str]:
    """The paths that an entry brought."""
    path = entry.place.path if isinstance(entry.place, Reference) else ""
    around = path if entry.operation == "insert" else path.rpartition(".")[0]
    for name in entry.names:
        if name is not None:
            yield ".".join(filter(None, [around, name]))


def _where(entry: Entry) -> str:
    return next(iter(_given_by(entry)), "") or (entry.place.path if isinstance(entry.place, Reference) else "")


def _layer(reference: Reference) -> dict[str, Any]:
    return {"layer": reference.path} | ({} if reference.number is None else {"number": reference.number})


def _slot(reference: Reference) -> dict[str, Any]:
    return {"slot": reference.path} | ({} if reference.number is None else {"number": reference.number})


# Making


class _Making:
    """Makes one edit of a recipe."""

    def __init__(self, model: nn.Module, told: Mapping[str, Any]) -> None:
        self._told = told
        self._root = _root_at(model, str(told.get("in", "")), bool(told.get("mounted")))

    def make(self) -> None:
        told, path, number = self._told, self._told.get("at"), self._told.get("number")
        if not isinstance(path, str):
            raise DescriptionError("it does not say where.")
        match told.get("do"):
            case "insert":
                composite = self._composite(path)
                edit.insert(composite, self._position(composite, told.get("after")), self._layer(), told.get("as"))
            case "replace":
                composite, slot = self._site(path, number)
                edit.swap(composite, slot, self._layer(), told.get("as"))
            case "remove":
                edit.swap(*self._site(path, number), None)
            case "adapt":
                self._adapt(path, number)
            case other:
                raise DescriptionError(f"there is no edit called {other!r}.")

    def _adapt(self, path: str, number: int | None) -> None:
        adapter = self._layer()
        if not isinstance(adapter, Adapter):
            raise DescriptionError(f"{type(adapter).__name__} is no adapter.")
        with recording() as record:
            names = [cast("str | None", name) for name in self._told.get("names", ())]
            record.names = iter(names)
            if path and (site := self._find_site(path, number)) is not None:
                cast("Adapter[nn.Module]", adapter).inject_at(*site)
            else:
                cast("Adapter[nn.Module]", adapter).inject()
            if [swap.new_name or None for swap in record.swaps] != names:
                raise EditError(
                    f"{type(adapter).__name__} made other edits than when the recipe was taken: layers named "
                    f"{[swap.new_name or None for swap in record.swaps]} where {names} were put in. Has its class changed?"
                )

    def _layer(self) -> nn.Module:
        layer: Any = build(self._told.get("layer"), self._find, _edit_alone)
        if not isinstance(layer, nn.Module):
            raise DescriptionError(f"{layer!r:.60} is no layer.")
        return layer

    def _find(self, path: str, number: int | None) -> nn.Module:
        found = self._find_site(path, number)
        layer = found[1].layer if found is not None else self._root[path] if path else self._root
        if layer is None:
            raise LookupError(f"nothing is called at {path!r}.")
        return layer

    def _composite(self, path: str) -> Composite:
        found = self._root[path] if path else self._root
        if not isinstance(found, Composite):
            raise LookupError(f"the {type(found).__name__} at {path!r} is no composite, so nothing can be put into it.")
        return found

    def _site(self, path: str, number: int | None) -> Site:
        found = self._find_site(path, number)
        if found is None:
            _ = self._root[path]
            raise LookupError(f"nothing is called at {path!r}.")
        return found

    def _find_site(self, path: str, number: int | None) -> Site | None:
        around, _, name = path.rpartition(".")
        try:
            home = self._composite(around)
        except LookupError:
            return None
        if number is None:
            inside = (home.node.slots, [(home, slot) for slot in home.node.filled()])[1]
            found = next((site for site in inside if site[1].name == name and site[1].home is None), None)
            if found is not None:
                return found
        sites = (site for site in slots_of(self._root) if site[1].layer is not None)
        alike = [site for site in sites if site[1].name == name and home_of(*site) is home]
        return alike[number or 0] if len(alike) > (number or 0) else None

    def _position(self, composite: Composite, after: Any) -> int:
        if after is None:
            return 0
        around, _, name = str(after["slot"]).rpartition(".")
        home = self._composite(around)
        slots = composite.node.slots
        alike = [slot for slot in slots if slot.name == name and home_of(composite, slot) is home]
        number = after.get("number")
        chosen = alike if number is not None else [slot for slot in alike if slot.layer is not None] or alike
        if len(chosen) <= (number or 0):
            raise LookupError(f"{composite.path!r} calls no {after['slot']!r}, behind which it was put in.")
        return composite.node.position(chosen[number or 0]) + 1


def _edit_alone(layer: nn.Module, edits: Any) -> None:
    """Makes edits on a composite that is not in the tree yet."""
    for told in edits:
        _Making(layer, told).make()


def _root_at(model: nn.Module, path: str, is_mounted: bool) -> Composite:
    around, name = model, ""
    names = path.split(".") if path else []
    for name in names[:-1] if is_mounted else names:
        around = _child(around, name)
    if is_mounted:
        name = names[-1]
        _ = _child(around, name)
        return mount(around, name, path.rpartition(".")[0])
    if not isinstance(around, Composite):
        raise LookupError(f"the {type(around).__name__} at {path!r} is a plain module, where a tree was edited.")
    return around


def _child(module: nn.Module, name: str) -> nn.Module:
    children = children_of(module)
    if name not in children:
        raise LookupError(
            f"{type(module).__name__} has no {name!r}. It has: {', '.join(children) or 'nothing'}. "
            "Was the recipe taken from another model?"
        )
    child = children[name]
    return children_of(child)[name] if isinstance(child, Mount) else child
