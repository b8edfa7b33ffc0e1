"""The names of one composite: which were given, what has them, and which can be given."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from suture.layers.swap import Swap

_NAME = re.compile(r"[A-Za-z0-9_]+(\+[A-Za-z0-9_]+)*")


class Names:
    """What a composite owns, by name. A name is given once; what was taken out has its own again when it returns."""

    def __init__(self) -> None:
        self.children: dict[str, nn.Module | None] = {}
        """torch's own dictionary of what the composite owns, by every name that was given, in order. None is a name
        whose layer was taken out: torch passes it over, and what returns to it has its old place."""
        self.removals: dict[str, weakref.ref[Swap]] = {}
        """The last swap that took a name away."""
        self.uses: dict[str, int] = {}
        """How many reasons there are to own something under a name: the slots that call it, and one for being in use
        itself. What nothing calls is not owned."""
        self._left: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._forgotten: set[str] = set()

    def count(self, name: str, by: int) -> None:
        """Counts reasons to own something as `name`."""
        self.uses[name] = self.uses.get(name, 0) + by
        if not self.uses[name]:
            del self.uses[name]

    def own(self, name: str, layer: nn.Module) -> None:
        """Owns `layer` as `name`."""
        if name.isdecimal() and "" in self._numbers:
            self._numbers[""] = max(self._numbers[""], int(name) + 1)
        self._forgotten.discard(name)
        self.children[name] = layer

    def disown(self, name: str, by: Swap | None) -> None:
        """Ends an ownership. While `by` can be undone, the name is not given to something else."""
        if by is not None:
            self.removals[name] = weakref.ref(by)
            self._left[id(self.children[name])] = name
        self.children[name] = None

    def is_free(self, name: str) -> bool:
        """Whether `name` can be given: it is not owned, and nothing that had it can come back."""
        return self.children.get(name) is None and self.last_removal(name) is None

    def last_removal(self, name: str) -> Swap | None:
        """The last swap that took a name away, if it can be undone and the name is not owned."""
        removal = self.removals.get(name) if self.children.get(name) is None else None
        swap = removal() if removal is not None else None
        return swap if swap is not None and swap.live else None

    def name_before(self, layer: nn.Module) -> str | None:
        """The name that `layer` had here until it was taken out, while that can be undone."""
        name = self._left.get(id(layer))
        removal = self.last_removal(name) if name is not None else None
        if removal is None or removal.old is not layer or removal.home.node is not self or removal.old_name != name:
            return None
        return name

    def unused(self, base: str) -> str:
        """`base`, or `base_2`, `base_3`, ...: the first that was never given."""
        if self.is_new(base):
            return base
        number = self._numbers.get(base, 2)
        while not self.is_new(f"{base}_{number}"):
            number += 1
        self._numbers[base] = number
        return f"{base}_{number}"

    def next_number(self) -> int:
        """The number after the highest that was ever given as a name."""
        number = self._numbers.get("")
        if number is None:
            number = max((int(name) + 1 for name in self.children if name.isdecimal()), default=0)
        while number and str(number - 1) not in self.children:
            number -= 1
        self._numbers[""] = number
        return number

    def is_new(self, name: str) -> bool:
        """Whether a name was never given, or only by what was undone."""
        return name not in self.children or name in self._forgotten

    def forget(self, name: str) -> list[str]:
        """Makes a name as if it had never been given; in front of others it keeps its place until they go too.

        Returns the names that went.
        """
        gone: list[str] = []
        self.children[name] = None
        self._forgotten.add(name)
        while self.children and (last := next(reversed(self.children))) in self._forgotten:
            gone.insert(0, last)
            del self.children[last]
            self._forgotten.discard(last)
            base, _, number = last.rpartition("_")
            if number.isdecimal() and base in self._numbers:
                self._numbers[base] = min(self._numbers[base], max(int(number), 2))
        return gone

    def remember(self, name: str, gone: list[str]) -> None:
        """Takes back `forget`."""
        self.children.update(dict.fromkeys(gone))
        self._forgotten.update(gone)
        self._forgotten.discard(name)


def check_name(name: str, owner: nn.Module) -> None:
    """Refuses a name that cannot be part of a path or would hide an attribute of its owner."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"A layer cannot be named {name!r}: a name is made of letters, digits and underscores, "
            f"because it is a part of paths and of checkpoint keys."
        )
    kind = type(owner)
    tensors = (*dict(owner.named_parameters(recurse=False)), *dict(owner.named_buffers(recurse=False)))
    if hasattr(kind, name) or name in owner.__dict__ or name in tensors:
        raise ValueError(
            f"A layer of {kind.__name__} cannot be named {name!r}: it would hide {kind.__name__}.{name}. "
            f"Choose another name, such as {name + '_layer'!r}."
        )
