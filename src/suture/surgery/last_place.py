"""Where an adapter was: the place to which it goes back, and the path that it is saved by."""

from __future__ import annotations

import weakref
from typing import Any

from suture.layers.composite import Composite
from suture.layers.mount import Mount, mount
from suture.layers.node import Slot
from suture.layers.ownership import home_of, path_of, top_of


class LastPlace:
    """A place by what its layer is called there: by its home and its name, which no edit changes."""

    def __init__(self, home: Composite | None, name: str, told: str = "") -> None:
        self._home = home
        """None in a copy that was made without the home."""
        self._name = name
        self._path = "" if home is None else path_of(home, name)
        self._around = told.removesuffix(self._path) if told.endswith(f".{self._path}") else ""
        """The path of the plain module that the tree stands in."""
        self._top = None if home is None else weakref.ref(top_of(home))

    @property
    def path(self) -> str:
        """The path of the place; when its model is gone, the one that it had there."""
        is_gone = self._home is None or self._top is None or self._top() is None
        path = self._path if is_gone or self._home is None else path_of(self._home, self._name)
        return f"{self._around}{path}"

    def find(self) -> tuple[Composite, Slot] | None:
        """Where what stands there is called now; None where nothing is."""
        home = self._home
        if isinstance(home, Mount):
            around, name = home.place
            home = home if around is None else mount(around, name, home.node.path_around)
        if home is None:
            return None
        # Most often it is called where it is owned, or near by: what goes back does not cost the size of the model.
        for slot in home.node.slots_of(home.node.children.get(self._name)):
            if slot.used and slot.name == self._name and slot.home is None:
                return home, slot
        for around in (home, top_of(home)):
            for place in around.places():
                if place.slot.used and place.slot.name == self._name and home_of(place.parent, place.slot) is home:
                    return place.parent, place.slot
        return None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_top": None if self._top is None else self._top()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._top = None if state["_top"] is None else weakref.ref(state["_top"])
