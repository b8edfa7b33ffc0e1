"""Several adapters as one thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar, cast, overload

from torch import nn

from suture.layers.recording import recording
from suture.surgery.adapter import Adapter

A = TypeVar("A", bound=Adapter[Any])


class AdapterGroup(Sequence[A]):
    """Injected adapters that go out together. As a block, `with group: ...`, they go out at its end.

    Example:
        >>> from suture import layers as sl
        >>> class Doubled(sl.Sum, Adapter[sl.Linear]):
        ...     def __init__(self, target: sl.Linear) -> None:
        ...         with self.setup_adapter(target):
        ...             super().__init__(target, target)
        >>> model = sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2))
        >>> with AdapterGroup([Doubled(linear).inject(model) for linear in model.layers(sl.Linear)]) as group:
        ...     print(len(group), type(model[0]).__name__)
        2 Doubled
        >>> type(model[0]).__name__
        'Linear'
    """

    def __init__(self, adapters: Sequence[A]) -> None:
        self.adapters = tuple(adapters)

    def eject(self) -> None:
        """Takes all out, the last first; all or none.

        Raises:
            EditError: one is not injected, or another edit is in the way, which is named.
        """
        with recording():
            for adapter in reversed(self.adapters):
                adapter.eject()

    def __len__(self) -> int:
        return len(self.adapters)

    @overload
    def __getitem__(self, index: int) -> A: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[A]: ...
    def __getitem__(self, index: int | slice) -> A | Sequence[A]:
        return self.adapters[index]

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the adapters brought, to be given to an optimizer; not what they adapt."""
        for adapter in self.adapters:
            yield from cast("nn.Module", adapter).parameters()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if any(adapter.is_injected for adapter in self.adapters):
            self.eject()

    def __repr__(self) -> str:
        kinds = sorted({type(adapter).__name__ for adapter in self.adapters})
        out = "" if any(adapter.is_injected for adapter in self.adapters) else ", ejected"
        return f"{type(self).__name__}({len(self)} x {' or '.join(kinds)}{out})"
