"""Several adapters as one thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar, cast, overload

from torch import nn

from suture.layers.composite import Composite
from suture.layers.recording import EditError, recording
from suture.surgery.adapter import Adapter

A_co = TypeVar("A_co", bound=Adapter[Any], covariant=True)


class AdapterGroup(Sequence[A_co]):
    """Adapters that go in and out together; `X.on(model, ...)` makes one of adapters of a class.

    As a block, `with group: ...`, they are in during the block and out at its end; what was out goes in first.

    Example:
        >>> from suture import layers as sl
        >>> class Scaled(sl.Sum, Adapter[sl.Linear]):
        ...     def __init__(self, target: sl.Linear, copies: int = 2) -> None:
        ...         with self.setup_adapter(target):
        ...             super().__init__(*[target] * copies)
        >>> model = sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2))
        >>> with Scaled.on(model, sl.Linear, copies=3) as group:
        ...     print(group, type(model[0]).__name__)
        AdapterGroup(2 x Scaled) Scaled
        >>> type(model[0]).__name__
        'Linear'
    """

    def __init__(self, adapters: Sequence[A_co]) -> None:
        self.adapters = tuple(adapters)

    @property
    def is_injected(self) -> bool:
        """Whether all are in."""
        return all(adapter.is_injected for adapter in self.adapters)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the adapters go by, each once."""
        return tuple(dict.fromkeys(adapter.adapter_name for adapter in self.adapters))

    @property
    def layers(self) -> tuple[Any, ...]:
        """The layers that are adapted."""
        return tuple(adapter.target for adapter in self.adapters)

    def inject(self) -> Self:
        """Puts all in again where they were; all or none.

        Raises:
            EditError: one is injected already, or something else stands in its place, which is named.
        """
        with recording():
            for adapter in self.adapters:
                adapter.inject()
        return self

    def eject(self) -> None:
        """Takes all out, the last first; all or none.

        Raises:
            EditError: one is not injected, or another edit is in the way, which is named.
        """
        with recording():
            for adapter in reversed(self.adapters):
                adapter.eject()

    # What the adapters have in common

    @property
    def scale(self) -> Any:
        """The strength of all adapters, for those that have one; it can be set."""
        return self.common("scale")

    @scale.setter
    def scale(self, scale: float) -> None:
        self.set(scale=scale)

    def common(self, attribute: str) -> Any:
        """The value of an attribute of the adapters. Raises `ValueError` where they do not have the same."""
        self._ensure_all_have(attribute)
        values = [getattr(adapter, attribute) for adapter in self.adapters]
        if any(value != values[0] for value in values):
            raise ValueError(
                f"The adapters of {self!r} have different values of {attribute}: "
                f"{', '.join(list(dict.fromkeys(map(str, values)))[:8])}. Ask each: group[0].{attribute}."
            )
        return values[0]

    def set(self, **attributes: Any) -> None:
        """Sets attributes of all adapters.

        >>> from suture import layers as sl
        >>> from suture.adapters import Dropout
        >>> group = Dropout.on(sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2)), sl.Linear, p=0.1)
        >>> group.set(p=0.5)
        >>> group.common("p")
        0.5
        """
        for attribute in attributes:
            self._ensure_all_have(attribute)
        for attribute, value in attributes.items():
            for adapter in self.adapters:
                setattr(adapter, attribute, value)

    def _ensure_all_have(self, attribute: str) -> None:
        if not self.adapters:
            raise ValueError(f"{type(self).__name__} is empty, so it has no {attribute}.")
        without = next((adapter for adapter in self.adapters if not hasattr(adapter, attribute)), None)
        if without is not None:
            raise TypeError(f"{type(without).__name__} has no {attribute!r} that could be read or set.")

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the adapters brought, to be given to an optimizer; not what they adapt.

        While they are out, what they would bring; what edits inside the target bring is known from `inject` on.
        """
        seen: set[int] = set()
        for adapter in self.adapters:
            layers: tuple[nn.Module, ...] = adapter.brought
            if not layers:
                # What it would bring is all that is in it without its target.
                seen.update(map(id, cast("nn.Module", adapter.target).parameters()))
                layers = tuple(cast("nn.Module", adapter).modules())
            for layer in layers:
                for parameter in layer.parameters(recurse=not isinstance(layer, Composite)):
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield parameter

    # As a sequence and as a block

    def __len__(self) -> int:
        return len(self.adapters)

    @overload
    def __getitem__(self, index: int) -> A_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[A_co]: ...
    def __getitem__(self, index: int | slice) -> A_co | Sequence[A_co]:
        return self.adapters[index]

    def __enter__(self) -> Self:
        if any(adapter.is_injected for adapter in self.adapters):
            self._refuse_part_of_it()
            return self
        return self.inject()

    def _refuse_part_of_it(self) -> None:
        out = sum(not adapter.is_injected for adapter in self.adapters)
        if out:
            raise EditError(f"{out} of the {len(self)} adapters of this group are out and the others in. Eject those.")

    def __exit__(self, *exception: object) -> None:
        with recording():
            for adapter in reversed(self.adapters):
                if adapter.is_injected:
                    adapter.eject()

    def __repr__(self) -> str:
        kinds = sorted({type(adapter).__name__ for adapter in self.adapters})
        out = "" if any(adapter.is_injected for adapter in self.adapters) else ", ejected"
        return f"{type(self).__name__}({len(self)} x {' or '.join(kinds)}{out})"
