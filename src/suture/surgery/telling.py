"""What was done to a model, told as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from suture.layers.composite import Composite
from suture.layers.description import Described, Reference, Unknown, changed_arguments
from suture.layers.history import Entry, History
from suture.layers.mount import Mount
from suture.layers.node import children_of, node_of


class RecipeError(ValueError):
    """Edits that cannot be told or made again; the message says which, where, and what to do. Nothing was changed."""


def tell(model: nn.Module) -> list[dict[str, Any]]:
    """The edits that stand in a model, in the order in which they were made.

    Raises:
        RecipeError: An edit put in a layer that has no description.
    """
    found = [(entry.number, told) for root in _roots(model) for entry, told in _Telling(root).entries()]
    return [told for _, told in sorted(found, key=lambda each: each[0])]


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
            # A tree that was edited before its place in a plain module was keeps what was done to it then.
            was_root = isinstance(module, Mount) and child is module.mounted
            yield from below(child, inner, inside, node is not None and node_of(child) is not None and not was_root)

    yield from below(model, "", "", False)


@dataclass
class _Root:
    """The root of a tree in a model: the model, a composite in a plain module, or the mount of a layer of one."""

    composite: Composite
    path: str
    is_mount: bool


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
        self._seen: dict[int, dict[str, Any]] = {}
        """What was told of the edit so far, by the identity of the layer."""
        self._given = [(entry.number, path) for entry in self._entries for path in _given_by(entry)]

    def entries(self) -> Iterator[tuple[Entry, dict[str, Any]]]:
        where = {"in": self._root.path, "mounted": self._root.is_mount} if self._root.path else {}
        for entry in self._entries:
            yield entry, where | self.told(entry)

    def told(self, entry: Entry) -> dict[str, Any]:
        self._seen = {}
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
                    f"The {entry.operation} at {_where(entry)!r} cannot be told: {content.reason}. Undo that edit to "
                    "get a recipe of the others."
                )
            case Reference():
                return _layer(content)
            case Described():
                return self._layer(content, entry)
            case History():
                around = self._seen
                edits = [self.told(each) for each in content.entries]
                self._seen = around
                return edits
            case dict():
                inner = cast("dict[str, Any]", content)
                if isinstance(original := inner.get("copy"), Reference):
                    return {"copy": original.path}
                return {key: self._content(value, entry) for key, value in inner.items()}
            case list():
                return [self._content(value, entry) for value in cast("list[Any]", content)]
            case _:
                return content

    def _layer(self, described: Described, entry: Entry) -> Any:
        layer = described.held.layer
        shared = self._shared(described, entry)
        if layer is None or shared is not None:
            return shared or self._content(described.content, entry)
        if (first := self._seen.get(id(layer))) is not None:
            # One layer at several places of what was put in.
            return {"again": first.setdefault("id", sum("id" in told for told in self._seen.values()))}
        told: dict[str, Any] = self._content(described.content, entry)
        if "arguments" in told:
            told["arguments"] |= self._content(changed_arguments(layer), entry)
        self._seen[id(layer)] = told
        return told

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
    return (
        entry.leaves
        or next(iter(_given_by(entry)), "")
        or (entry.place.path if isinstance(entry.place, Reference) else "")
    )


def _layer(reference: Reference) -> dict[str, Any]:
    return {"layer": reference.path} | ({} if reference.number is None else {"number": reference.number})


def _slot(reference: Reference) -> dict[str, Any]:
    return {"slot": reference.path} | ({} if reference.number is None else {"number": reference.number})
