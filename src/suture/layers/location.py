"""Where in a tree an exception happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from suture.layers.node import Slot

if TYPE_CHECKING:
    from suture.layers.composite import Composite

_MARK = "In layer "


def locate(error: Exception, composite: Composite, slot: Slot, args: tuple[Any, ...]) -> None:
    """Adds a note to `error`, once: the path of the failing layer, its surroundings, and what it was called with.

    Not while a compiled function is traced: the tracer could not follow, and would report that instead of the error.
    """
    if torch.compiler.is_compiling() or any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
        return
    if type(error).__module__ == "torch.utils.checkpoint":
        return  # how torch ends a recomputation that has all it needs; nobody reads it
    from suture.layers.printing import excerpt  # printing is heavy and only needed when something failed

    home = composite if slot.home is None else slot.home
    path = ".".join(filter(None, [home.path, slot.name]))
    root = composite
    while root.parent is not None:
        root = root.parent
    received = ", ".join(describe(value) for value in args) or "nothing"
    inside = path.removeprefix(f"{root.path}.") if root.path else path
    lines = [f"{_MARK}{path!r} ({type(slot.layer).__name__}), called with {received}:", excerpt(root, inside)]
    error.add_note("\n".join(lines))


def describe(value: Any) -> str:
    """A value as it is named in errors: for a tensor its shape, dtype and device.

    >>> describe(torch.zeros(2, 3))
    'a (2, 3) tensor of float32 on cpu'
    """
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {tuple(value.shape)} tensor of {dtype} on {value.device}"
    return f"{value!r:.60}" if value is None or isinstance(value, bool | int | float | str) else type(value).__name__
