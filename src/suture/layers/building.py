"""Layers from their descriptions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from suture.layers.description import class_of, signature_of

Find = Callable[[str, int | None], nn.Module]
"""Gives the layer at a path of the tree; of several places that call it, the one with a number."""
Edit = Callable[[nn.Module, Any], None]
"""Makes the edits in a description on the composite that has them."""


class DescriptionError(ValueError):
    """A description that nothing can be built from; the message says why."""


def build(content: Any, find: Find, edit: Edit) -> Any:
    """What a description, as read from JSON, describes.

    Raises:
        DescriptionError: It names a class that is not registered, or is no description.
    """
    return _Building(find, edit).value(content)


class _Building:
    """Builds what one description describes."""

    def __init__(self, find: Find, edit: Edit) -> None:
        self._find = find
        self._edit = edit
        self._made: dict[Any, Any] = {}
        """What stands at several places in the description."""

    def value(self, content: Any) -> Any:
        match content:
            case None | bool() | int() | float() | str():
                return content
            case list():
                return [self.value(each) for each in cast("list[Any]", content)]
            case {"layer": str(path), **others}:
                return self._find(path, cast("int | None", others.get("number")))
            case {"copy": str(path)}:
                return cast("Any", self._find(path, None)).structural_copy()
            case {"again": int(number)} if number in self._made:
                return self._made[number]
            case {"class": str(name), "arguments": dict()}:
                return self._layer(name, cast("dict[str, Any]", content))
            case {"float": str(number)}:
                return float(number)
            case {"tensor": list(), "dtype": str(name)}:
                return torch.zeros(content["tensor"], dtype=_dtype(name))
            case {"dtype": str(name)}:
                return _dtype(name)
            case {"device": str(name)}:
                return torch.device(name)
            case {"slice": [start, stop, step]}:
                return slice(*(self.value(each) for each in (start, stop, step)))
            case {"tuple": list()}:
                return tuple(self.value(content["tuple"]))
            case {"dict": list()}:
                return dict(self.value(content["dict"]))
            case _:
                raise DescriptionError(f"{content!r:.80} describes no layer and no argument of one.")

    def _layer(self, name: str, content: dict[str, Any]) -> Any:
        kind = class_of(name)
        if kind is None:
            raise DescriptionError(
                f"No class is registered as {name!r}. Import the module that defines it first, and mark the class "
                f"there with @suture.register. Nothing else is ever looked up by name."
            )
        values = {key: self.value(value) for key, value in content["arguments"].items()}
        children: dict[str, Any] = content.get("children", {})
        layers = {key: self.value(child) for key, child in children.items()}
        signature = signature_of(kind)
        if unknown := values.keys() - signature.parameters:
            raise DescriptionError(f"{name} is not made with {', '.join(sorted(unknown))}, but with {signature}.")
        bound = inspect.BoundArguments(signature, cast("Any", values))
        make: Any = kind
        layer = make(*((layers,) if "children" in content else bound.args), **bound.kwargs)
        if "edits" in content:
            self._edit(layer, content["edits"])
        if "id" in content:
            self._made[content["id"]] = layer
        return layer


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise DescriptionError(f"torch has no dtype {name!r}.")
    return dtype
