"""Edits that are told as data, made on a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import nn

from suture.layers import edit
from suture.layers.building import DescriptionError, build
from suture.layers.composite import Composite
from suture.layers.mount import Mount, mount
from suture.layers.node import Slot, children_of
from suture.layers.ownership import home_of
from suture.layers.paths import slot_path, slots_of
from suture.layers.recording import EditError, recording
from suture.surgery.adapter import Adapter

Site = tuple[Composite, Slot]


def make(model: nn.Module, told: Mapping[str, Any]) -> None:
    """Makes one edit.

    Raises:
        DescriptionError: It is not told as an edit is, or names a class that is not registered.
        LookupError: A place is not there.
        EditError: It cannot be made there.
    """
    _Making(model, told).make()


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
            made = [swap.new_name or None for swap in record.swaps]
            if made != names:
                raise EditError(
                    f"{type(adapter).__name__} made other edits than when the recipe was taken: it put in {made} where "
                    f"it had put in {names}. Has its class changed?"
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
            # A slot of what is only the home of something called elsewhere is not in use.
            own = (slot for slot in home.node.filled() if slot.used and slot.home is None and slot.name == name)
            if (slot := next(own, None)) is not None:
                return home, slot
        sites = (site for site in slots_of(self._root) if site[1].layer is not None)
        alike = [site for site in sites if site[1].name == name and home_of(*site) is home]
        return alike[number or 0] if len(alike) > (number or 0) else None

    def _position(self, composite: Composite, after: Any) -> int:
        if after is None:
            return 0
        alike = [slot for slot in composite.node.slots if slot_path(composite, slot) == after["slot"]]
        number = after.get("number")
        chosen = alike if number is not None else [slot for slot in alike if slot.layer is not None] or alike
        if len(chosen) <= (number or 0):
            raise LookupError(f"{composite.path!r} calls no {after['slot']!r}, behind which it was put in.")
        return composite.node.position(chosen[number or 0]) + 1


def _edit_alone(layer: nn.Module, edits: Any) -> None:
    """Makes edits on a composite that is not in the tree yet."""
    for told in edits:
        make(layer, told)


def _root_at(model: nn.Module, path: str, is_mounted: bool) -> Composite:
    around, name = model, ""
    names = path.split(".") if path else []
    for name in names[:-1] if is_mounted else names:
        around = _child(around, name)
    if is_mounted:
        name = names[-1]
        _ensure_child(around, name)
        return mount(around, name, path.rpartition(".")[0])
    if not isinstance(around, Composite):
        raise LookupError(f"the {type(around).__name__} at {path!r} is a plain module, where a tree was edited.")
    return around


def _child(module: nn.Module, name: str) -> nn.Module:
    _ensure_child(module, name)
    child = children_of(module)[name]
    return child.mounted if isinstance(child, Mount) else child


def _ensure_child(module: nn.Module, name: str) -> None:
    children = children_of(module)
    if name not in children:
        raise LookupError(
            f"{type(module).__name__} has no {name!r}. It has: {', '.join(children) or 'nothing'}. "
            "Was the recipe taken from another model?"
        )
