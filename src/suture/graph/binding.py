"""How a graph is called: what is given by position, by keyword or as a structure, matched to its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from suture.graph.input import Input
from suture.graph.values import Value, values_in
from suture.layers.context import REQUIRED

# A union of types cannot be traced by torch.compile where a call is bound.
_STRUCTURES = (dict, list, tuple)
_SEQUENCES = (list, tuple)


class Parameters:
    """The parameters of a graph, made from its `inputs`: one value, a sequence or a dictionary, nested as wanted."""

    def __init__(self, inputs: Any) -> None:
        self.structure = inputs
        self.by_name = dict(_named(inputs))
        self.flat: dict[str, Value] = {}
        for name, structure in self.by_name.items():
            for path, value in _leaves(name, structure):
                if value in set(self.flat.values()):
                    raise ValueError(f"One value was given as two inputs, the second as {path!r}. Give it once.")
                self.flat[path.replace(".", "_")] = value

    def add(self, optional: Iterable[Input]) -> None:
        """Takes further optional inputs, by keyword."""
        for value in sorted(optional, key=lambda each: each.name):
            name, number = value.name, 1
            while name in self.by_name or name in self.flat:
                number += 1
                name = f"{value.name}_{number}"
            self.by_name[name] = self.flat[name] = value

    @property
    def signature(self) -> inspect.Signature:
        """The parameters, with the defaults of those that may be left out."""
        kind = (
            inspect.Parameter.POSITIONAL_OR_KEYWORD if self._required_come_first() else inspect.Parameter.KEYWORD_ONLY
        )
        return inspect.Signature(
            [inspect.Parameter(name, kind, default=_default(structure)) for name, structure in self.by_name.items()]
        )

    def is_optional(self, name: str) -> bool:
        """Whether a parameter may be left out."""
        return _default(self.by_name[name]) is not inspect.Parameter.empty

    def _required_come_first(self) -> bool:
        optional = [self.is_optional(name) for name in self.by_name]
        return optional == sorted(optional)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The value of each flat input, checked.

        Raises:
            TypeError: an input is missing, unknown, given twice, or not of its type.
            ValueError: a tensor has another shape.
        """
        if self._is_whole_structure(args, kwargs):
            args, kwargs = _spread(args[0])
        if len(args) > len(self.by_name):
            raise TypeError(
                f"The graph takes {len(self.by_name)} inputs: {', '.join(self.by_name)}. "
                f"Received {len(args)} by position."
            )
        given = dict(zip(self.by_name, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.by_name:
                raise TypeError(f"The graph has no input {name!r}. It takes: {', '.join(self.by_name)}.")
            if name in given:
                raise TypeError(f"The input {name!r} was given by position and by keyword.")
            given[name] = value
        bound: list[Any] = []
        for name, structure in self.by_name.items():
            bound += _matched(name, structure, given.get(name, REQUIRED))
        return bound

    def _is_whole_structure(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        if len(args) != 1 or kwargs or isinstance(self.structure, Value):
            return False
        alone = len(self.by_name) == 1 and not isinstance(next(iter(self.by_name.values())), Value)
        return isinstance(args[0], _STRUCTURES) and not alone


def _default(structure: Any) -> Any:
    values = values_in(structure)
    if all(isinstance(value, Input) and value.optional for value in values):
        return values[0].default if isinstance(structure, Input) else None
    return inspect.Parameter.empty


def _named(inputs: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(inputs, Mapping):
        yield from cast("Mapping[str, Any]", inputs).items()
        return
    each = [inputs] if isinstance(inputs, Value) else list(inputs)
    seen: set[str] = set()
    for number, value in enumerate(each):
        name = value.name if isinstance(value, Input) else f"input_{number}"
        if name in seen:
            raise ValueError(f"Two inputs are named {name!r}. Give them in a dictionary, or other names.")
        seen.add(name)
        yield name, value


def _leaves(path: str, structure: Any) -> Iterator[tuple[str, Value]]:
    if isinstance(structure, Value):
        yield path, structure
    elif isinstance(structure, Mapping):
        for key, inner in cast("Mapping[Any, Any]", structure).items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(structure, Sequence) and not isinstance(structure, str):
        for number, inner in enumerate(cast("Sequence[Any]", structure)):
            yield from _leaves(f"{path}.{number}", inner)
    else:
        raise TypeError(
            f"The inputs of a graph are symbolic values, in tuples, lists and dictionaries. "
            f"Received for {path!r}: {structure!r:.60}."
        )


def _spread(structure: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(structure, Mapping):
        return (), cast("Mapping[str, Any]", structure)
    return tuple(structure), {}


def _matched(path: str, wanted: Any, given: Any) -> Iterator[Any]:
    """What is given for each value in `wanted`, in order."""
    if isinstance(wanted, Value):
        yield _checked(path, wanted, given)
        return
    names = list(cast("Mapping[Any, Any]", wanted)) if isinstance(wanted, Mapping) else list(range(len(wanted)))
    if given is None or given is REQUIRED:
        for name in names:
            yield from _matched(f"{path}.{name}", wanted[name], given)
        return
    if isinstance(given, Mapping) and isinstance(wanted, Mapping):
        unknown = [name for name in cast("Mapping[Any, Any]", given) if name not in wanted]
        if unknown:
            raise TypeError(f"The input {path!r} has no {unknown[0]!r}. It has: {', '.join(map(str, names))}.")
        for name in names:
            yield from _matched(f"{path}.{name}", wanted[name], cast("Any", given).get(name, REQUIRED))
        return
    sequence = cast("Any", given)
    if not isinstance(given, _SEQUENCES) or len(sequence) != len(names):
        kind = "a dictionary of" if isinstance(wanted, Mapping) else f"a {type(wanted).__name__} of {len(names)}:"
        received = f"{type(sequence).__name__}{f' of {len(sequence)}' if hasattr(sequence, '__len__') else ''}"
        raise TypeError(f"The input {path!r} is {kind} {', '.join(map(str, names))}. Received: {received}.")
    for name, inner in zip(names, sequence, strict=True):
        yield from _matched(f"{path}.{name}", wanted[name], inner)


def _checked(path: str, wanted: Value, given: Any) -> Any:
    if isinstance(given, Value):
        return given
    if isinstance(wanted, Input):
        if given is REQUIRED and wanted.optional:
            return wanted.default
        if given is REQUIRED:
            raise TypeError(f"The input {path!r} is required and was not given.")
        wanted.check(given, path)
        return given
    if given is REQUIRED or given is None:
        raise TypeError(f"The input {path!r}, a value on the way through a graph, is required. Received: nothing.")
    if isinstance(wanted.example, Tensor) and not (isinstance(given, Tensor) and given.dim() == wanted.example.dim()):
        raise TypeError(
            f"The input {path!r} is a tensor of {wanted.example.dim()} dimensions. Received: {given!r:.60}."
        )
    return given
