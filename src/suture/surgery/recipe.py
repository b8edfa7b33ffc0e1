"""The edits made to a model as data, which are made again on a fresh one.

A recipe is JSON. It says what was done, where, and with which layers: names of registered classes and what they were
made with. It holds no code, no weights, and nothing that is looked up by name other than registered classes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from suture.layers.edit import Edit
from suture.layers.node import node_of
from suture.layers.recording import EditError, borrowing, recording
from suture.surgery.adapter import Adapter
from suture.surgery.making import make
from suture.surgery.telling import RecipeError, tell

VERSION = 1


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
    return Recipe(tell(model))


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
                    make(model, told)
                except (LookupError, TypeError, ValueError, EditError, AttributeError) as error:
                    raise RecipeError(
                        f"Edit {number} of the recipe, {_summary(told)}, cannot be made: {error}"
                    ) from error
        return Edit(list(record.swaps))

    def _done(self, model: nn.Module) -> int:
        """How many of the first edits the model has."""
        try:
            made = tell(model)
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
            case {"format": "suture.recipe", "version": version, "edits": list()} if version == VERSION:
                told: list[Any] = content["edits"]
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

    def __hash__(self) -> int:
        return hash(json.dumps(self.edits, sort_keys=True))

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
            where = f" after {after.get('slot')}" if isinstance(after, dict) else " first"
            return f"insert{inner}{where}" + (f" in {place}" if place else "")
        case "remove":
            return f"remove {place}"
        case "adapt":
            return f"adapt {place} by{inner}"
        case _:
            return f"{operation} {place} by{inner}"
