"""Random edits of random trees, through the public calls."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hypothesis import strategies as st
from torch import nn

from suture import layers as sl
from suture.layers.edit import editing
from suture.layers.navigation import Place
from suture.layers.ownership import everything_in
from suture.surgery.adapter import Adapter
from suture.surgery.selection import Selection, select
from tests.laws.trees import KINDS, Draw, leaf, part


class Handle(Protocol):
    """What takes an edit back."""

    def undo(self) -> None: ...


class Injected:
    """An adapter as a handle."""

    def __init__(self, adapter: Adapter[Any]) -> None:
        self.adapter = adapter

    def undo(self) -> None:
        self.adapter.eject()

    def __repr__(self) -> str:
        return f"Injected({type(self.adapter).__name__})"


class Around(sl.Chain, Adapter[nn.Module]):
    """Keeps its target and adds layers before or after it."""

    def __init__(self, target: nn.Module, before: list[nn.Module], after: list[nn.Module]) -> None:
        with self.setup_adapter(target):
            super().__init__(*before, target, *after)


class Twice(sl.Sum, Adapter[nn.Module]):
    """Calls a leaf twice."""

    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, target)


class Instead(sl.Chain, Adapter[nn.Module]):
    """Takes the place of its target and does not call it."""

    def __init__(self, target: nn.Module, *layers: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(*layers)


class Inside(sl.Chain, Adapter[sl.Composite]):
    """Keeps its target, and edits it as drawn while it is injected."""

    def __init__(self, target: sl.Composite, draw: Draw) -> None:
        self.draw: Draw | None = draw
        with self.setup_adapter(target):
            super().__init__(target)

    def inject(self, parent: nn.Module | None = None) -> Inside:
        draw, self.draw = self.draw, None
        assert draw is not None
        for _ in range(draw(st.integers(0, 3))):
            if len(list(self.target.places())):
                plain_edit(self.target, draw)
        if draw(st.booleans()):
            super().inject(parent)
            if len(list(self.target.places())) and draw(st.booleans()):
                plain_edit(self.target, draw)
            return self
        return super().inject(parent)


Edited = Callable[[sl.Composite, Draw], Handle]
"""What makes an edit of a tree."""


def places(model: sl.Composite) -> list[Place]:
    return list(model.places())


def a_place(model: sl.Composite, draw: Draw) -> Place:
    found = places(model)
    return found[draw(st.integers(0, len(found) - 1))]


def a_composite(model: sl.Composite, draw: Draw) -> sl.Composite:
    """The root or any composite below, but those that have no children by definition."""
    found = [model, *(layer for layer in model.layers(sl.Composite) if not isinstance(layer, sl.SetContext))]
    return found[draw(st.integers(0, len(found) - 1))]


def at(model: sl.Composite, place: Place) -> Selection:
    return select(model, lambda match: match.slot is place.slot)


# Edits of what is in one composite


def insert(model: sl.Composite, draw: Draw) -> Handle:
    composite = a_composite(model, draw)
    layer, position = part(draw, 1), draw(st.integers(-3, 3))
    name = draw(st.sampled_from((None, None, None, "part0", "side", "Mix", "1")))
    if name is not None and not composite.node.is_free(name):
        name = None
    if draw(st.booleans()):
        return composite.append(layer, name)
    return composite.insert(position, layer, name)


def insert_beside(model: sl.Composite, draw: Draw) -> Handle:
    selected = at(model, a_place(model, draw))
    layer = part(draw, 1)
    return selected.insert_before(layer) if draw(st.booleans()) else selected.insert_after(layer)


def pop(model: sl.Composite, draw: Draw) -> Handle:
    place = a_place(model, draw)
    position = [slot is place.slot for slot in place.parent.node.filled()].index(True)
    return place.parent.pop(position - draw(st.sampled_from((0, len(place.parent)))))


def replace(model: sl.Composite, draw: Draw) -> Handle:
    return at(model, a_place(model, draw)).replace(part(draw, 1))


def wrap(model: sl.Composite, draw: Draw) -> Handle:
    """Puts a composite around a layer, in any place among its children, perhaps one level deeper."""
    extra = [part(draw, 1) for _ in range(draw(st.integers(0, 2)))]
    kind: type[sl.Composite] = draw(st.sampled_from(KINDS))
    position, deeper = draw(st.integers(0, len(extra))), draw(st.booleans())
    times = draw(st.sampled_from((1, 1, 1, 2)))

    def around(layer: nn.Module) -> sl.Composite:
        repeated = [layer] * (1 if isinstance(layer, sl.Composite) else times)
        kept = [sl.Residual(*repeated)] if deeper else repeated
        return kind(*extra[:position], *kept, *extra[position:])

    return at(model, a_place(model, draw)).wrap(around)


def rebuild(model: sl.Composite, draw: Draw) -> Handle:
    """Replaces a composite by another that holds some of what was inside, in any order, some of it wrapped."""

    def rebuilt(old: nn.Module) -> nn.Module:
        inner = [place.layer for place in old.places()] if isinstance(old, sl.Composite) else []
        chosen = draw(st.lists(st.sampled_from(inner), max_size=3, unique_by=id)) if inner else []
        # What is inside another of the chosen layers cannot be called beside it, if it is a composite.
        chosen = [
            layer
            for layer in chosen
            if not any(isinstance(o, sl.Composite) and o is not layer and o.find_parent(layer) for o in chosen)
        ]
        children = [sl.Sum(layer, leaf(draw)) if draw(st.booleans()) else layer for layer in chosen]
        if draw(st.booleans()):
            children.insert(draw(st.integers(0, len(children))), part(draw, 1))
        kind: type[sl.Composite] = draw(st.sampled_from(KINDS))
        return kind(*children)

    return at(model, a_place(model, draw)).replace(rebuilt)


def hoist(model: sl.Composite, draw: Draw) -> Handle:
    """Replaces a composite by something inside it."""
    place = a_place(model, draw)
    inner = list(place.layer.places()) if isinstance(place.layer, sl.Composite) else []
    if not inner:
        return replace(model, draw)
    layer = inner[draw(st.integers(0, len(inner) - 1))].layer
    return at(model, place).replace(layer)


def move(model: sl.Composite, draw: Draw) -> Handle:
    """Takes a layer out and puts it in elsewhere, perhaps in what is left of the tree, as one edit."""
    place = a_place(model, draw)
    for moving in everything_in(place.layer):
        # What was moved is at home elsewhere, and says so; also what can return to where it was in it.
        for each in (moving, *moving.parameters()):
            vars(each).update(moved=True)
    with editing(model) as edit:
        at(model, place).remove()
        a_composite(model, draw).insert(draw(st.integers(-2, 2)), place.layer)
    return edit


def several(model: sl.Composite, draw: Draw) -> Handle:
    """Several edits that are one."""
    with editing(model) as edit:
        for _ in range(draw(st.integers(0, 3))):
            plain_edit(model, draw)
    return edit


def selected_edit(model: sl.Composite, draw: Draw) -> Handle:
    """One edit of several places at once."""
    found = places(model)
    chosen = draw(st.lists(st.sampled_from(found), min_size=1, max_size=4, unique_by=id))
    slots = {id(place.slot) for place in chosen}
    selected = select(model, lambda match: id(match.slot) in slots)
    if draw(st.booleans()):
        selected = selected.innermost()
    match draw(st.integers(0, 5)):
        case 0:
            return selected.remove()
        case 1:
            return selected.replace(lambda layer: part(draw, 1))
        case 2:
            return selected.insert_before(lambda layer: leaf(draw))
        case 3:
            return selected.insert_after(lambda layer: layer.structural_copy() if is_tree(layer) else leaf(draw))
        case 4:
            return selected.wrap(lambda layer: sl.Sum(layer, leaf(draw)))
        case _:
            return selected.adapt(lambda layer: Around(layer, [leaf(draw)], []))


def is_tree(layer: nn.Module) -> bool:
    return isinstance(layer, sl.Composite)


EDITS: tuple[Callable[[sl.Composite, Draw], Handle], ...] = (
    insert,
    insert_beside,
    pop,
    replace,
    wrap,
    wrap,
    rebuild,
    hoist,
    move,
)


def plain_edit(model: sl.Composite, draw: Draw) -> Handle:
    if not places(model):
        return insert(model, draw)
    return draw(st.sampled_from(EDITS))(model, draw)


# Adapters


def inject(model: sl.Composite, draw: Draw) -> Handle:
    place = a_place(model, draw)
    if list(place.parent).count(place.layer) > 1:
        return replace(model, draw)
    number = draw(st.integers(0, 3))
    if number == 0 and isinstance(place.layer, sl.Composite):
        adapter: Adapter[Any] = Inside(place.layer, draw)
    elif number == 1 and not isinstance(place.layer, sl.Composite):
        adapter = Twice(place.layer)
    elif number == 2:
        adapter = Instead(place.layer, *(part(draw, 1) for _ in range(draw(st.integers(0, 2)))))
    else:
        adapter = Around(
            place.layer,
            [leaf(draw) for _ in range(draw(st.integers(0, 1)))],
            [leaf(draw) for _ in range(draw(st.integers(0, 1)))],
        )
    at(model, place).adapt(lambda layer: adapter)
    return Injected(adapter)
