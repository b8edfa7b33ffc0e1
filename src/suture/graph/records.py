"""What was recorded as flat rows, so that a graph can be copied and pickled, however long it is.

Values and calls hold one another in chains as long as a model is deep, which a copy cannot follow call by call. In rows
each says by number what it holds. Layers and tensors are copied with the rows; composites, of which a graph only knows
that they were called, are shared by copies of the graph.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any, Self

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from suture.graph.calls import Item, next_number
from suture.graph.examples import fake_strided
from suture.graph.recording import Recorded
from suture.graph.values import Value, bounds_of
from suture.layers.composite import Composite


@dataclass(frozen=True)
class Shared:
    """What a copy of a graph has in common with it."""

    what: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


@dataclass(frozen=True)
class _Number:
    """Stands for a value or a call: that of a row."""

    number: int


class _Example:
    """The example of a value. It can hold fake tensors, also inside of other things, which know no pickling."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        written = io.BytesIO()
        _Pickler(written).dump(self.what)
        return _read_example, (written.getvalue(),)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: object) -> Any:
        if not isinstance(obj, FakeTensor):
            return NotImplemented
        return fake_strided, (tuple(obj.shape), obj.stride(), obj.dtype, obj.device)


def _read_example(written: bytes) -> _Example:
    return _Example(pickle.loads(written))


class Rows:
    """A structure with everything that it was recorded from. `restored` makes all of it anew.

    >>> import torch
    >>> from suture.graph.input import Input
    >>> y = torch.relu(Input("x", shape=(None, 4)))
    >>> made = Rows(y).restored()
    >>> made is y, made.origin.args[0], tuple(made.example.shape)
    (False, Input('x', shape=(None, 4)), (2, 4))
    """

    def __init__(self, structure: Any) -> None:
        flattening = _Flattening()
        self._structure = flattening.flat(structure)
        self._rows: list[tuple[type[Value | Item], dict[str, Any], _Example | None]] = []
        # It grows by what is found in a row.
        for each in flattening.found:
            held = {name: flattening.flat(part) for name, part in vars(each).items() if name != "example"}
            self._rows.append((type(each), held, _Example(each.example) if isinstance(each, Value) else None))

    def restored(self) -> Any:
        """The structure, with values and calls of its own, which were recorded after all others."""
        made: list[Any] = [object.__new__(kind) for kind, _, _ in self._rows]
        for each, (_, held, example) in zip(made, self._rows, strict=True):
            vars(each).update({name: _deep(part, made) for name, part in held.items()})
            if example is not None:
                each.example = example.what
        for item in sorted((each for each in made if isinstance(each, Item)), key=lambda item: item.number):
            item.number = next_number()
        return _deep(self._structure, made)


class _Flattening:
    """Numbers values and calls in the order in which they are found."""

    def __init__(self) -> None:
        self.found: list[Value | Item] = []
        self._numbers: dict[Value | Item, _Number] = {}

    def flat(self, structure: Any) -> Any:
        """A structure with numbers for values and calls."""
        return pytree.tree_map(self._flat, structure)

    def _flat(self, leaf: Any) -> Any:
        if isinstance(leaf, Value | Item):
            if leaf not in self._numbers:
                self._numbers[leaf] = _Number(len(self.found))
                self.found.append(leaf)
            return self._numbers[leaf]
        if isinstance(leaf, Composite | Recorded):
            return Shared(leaf)
        return slice(*map(self._flat, bounds_of(leaf))) if isinstance(leaf, slice) else leaf


def _deep(structure: Any, made: list[Any]) -> Any:
    def deep(leaf: Any) -> Any:
        match leaf:
            case _Number():
                return made[leaf.number]
            case Shared():
                return leaf.what
            case slice():
                return slice(*map(deep, bounds_of(leaf)))
            case _:
                return leaf

    return pytree.tree_map(deep, structure)
