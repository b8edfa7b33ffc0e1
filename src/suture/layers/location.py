"""Where in a tree an exception happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from suture.layers.node import Slot

if TYPE_CHECKING:
    from suture.layers.composite import Composite

_MARK = "In layer "


def locate(error: Exception, composite: Composite, slot: Slot, args: tuple[Any, ...]) -> None:
    """Adds a note to `error`, once: the path of the failing layer, its surroundings, and what it was called with.

    Not while a compiled function is traced: the tracer could not follow, and would report that instead of the error.
    """
    if torch.compiler.is_compiling() or is_located(error):
        return
    if type(error).__module__ == "torch.utils.checkpoint":
        return  # how torch ends a recomputation that has all it needs; nobody reads it
    home = composite if slot.home is None else slot.home
    path = ".".join(filter(None, [home.path, slot.name]))
    root = composite
    while root.parent is not None:
        root = root.parent
    add_location(error, root, path.removeprefix(f"{root.path}.") if root.path else path, slot.layer, args, path)


def add_location(
    error: Exception, root: nn.Module, inside: str, layer: object, args: tuple[Any, ...], path: str | None = None
) -> None:
    """Adds the note for a layer that is `inside` of a root, and is known by `path` to whoever reads it."""
    from suture.layers.printing import excerpt  # printing is heavy and only needed when something failed

    received = ", ".join(describe(value) for value in args) or "nothing"
    heading = f"{_MARK}{path or inside!r} ({type(layer).__name__}), called with {received}:"
    error.add_note(f"{heading}\n{excerpt(root, inside)}")


def is_located(error: Exception) -> bool:
    """Whether the error says where it happened."""
    return any(note.startswith(_MARK) for note in getattr(error, "__notes__", ()))


def describe(value: Any) -> str:
    """A value as it is named in errors: for a tensor its shape, dtype and device.

    >>> describe(torch.zeros(2, 3))
    'a (2, 3) tensor of float32 on cpu'
    """
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {tuple(value.shape)} tensor of {dtype} on {value.device}"
    return f"{value!r:.60}" if value is None or isinstance(value, bool | int | float | str) else type(value).__name__
