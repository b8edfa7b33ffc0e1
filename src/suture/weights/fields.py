"""Reading a configuration so that nothing in it goes unnoticed.

A family takes the fields it uses, says which only matter to other programs, and which it understands at one value.
What then is left would change the numbers in a way the family does not know, and is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import cast

from suture.weights.checkpoint import CheckpointError

MOST = 2**63
"""More than anything of a model counts: torch has no size like it."""


class Fields:
    """The fields of a configuration, each to be taken once.

    Args:
        values: The fields as read.
        where: What they were read from, for messages.

    Example:
        >>> fields = Fields({"width": 3, "use_cache": True, "softcap": 30.0}, "config.json")
        >>> fields.integer("width")
        3
        >>> fields.ignore(["use_cache"])
        >>> fields.finish()
        Traceback (most recent call last):
            ...
        suture.weights.checkpoint.CheckpointError: config.json: fields that are not understood: softcap = 30.0. ...
    """

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._left = dict(values)
        self.where = where

    def take(self, name: str) -> object:
        """The value of a field, or None where there is none; afterwards it counts as understood."""
        return self._left.pop(name, None)

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number, such as counts and widths are; a field without default has to be there."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MOST:
            raise self._wrong(name, value, f"a whole number of at least {least}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above zero; a field without default has to be there."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._wrong(name, value, "a number above 0")
        return float(value)

    def optional_number(self, name: str, default: float | None) -> float | None:
        """A number above zero, None where the field is null; where there is no such field, the default."""
        return self.number(name, default) if self._is_given(name, default) else None

    def optional_integer(self, name: str, default: int | None) -> int | None:
        """A whole number above zero, None where the field is null; where there is no such field, the default."""
        return self.integer(name, default) if self._is_given(name, default) else None

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A text; a field without default has to be there."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value

    def nested(self, name: str) -> Fields | None:
        """The fields of an object, or None where there is none."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Fields(cast("dict[str, object]", value), f"{self.where}, {name}")

    def only(self, name: str, *accepted: object) -> None:
        """Understand a field at the given values alone; null and a field that is not there are always accepted."""
        value = self._left.get(name)
        if value is None or value in accepted:
            self.take(name)

    def ignore(self, names: Iterable[str]) -> None:
        """Fields that do not change what the model computes."""
        for name in names:
            self.take(name)

    def finish(self) -> None:
        """Refuse what nobody took.

        Raises:
            CheckpointError: There are such fields; it names each with its value.
        """
        if self._left:
            said = ", ".join(f"{name} = {value!r}" for name, value in self._left.items())
            raise CheckpointError(
                f"{self.where}: fields that are not understood: {said}. They may change what the model computes, so "
                "the model is not loaded. If you know that they do not, remove them from the configuration."
            )

    def _is_given(self, name: str, default: object) -> bool:
        """Whether the field has a value, its own or the default; a null is taken."""
        if name not in self._left:
            return default is not None
        return self._left[name] is not None or self.take(name) is not None

    def _value(self, name: str, default: object) -> object:
        value = self.take(name)
        if value is None and default is None:
            raise CheckpointError(f"{self.where}: the field {name} is missing, and the model cannot be built without.")
        return default if value is None else value

    def _wrong(self, name: str, value: object, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {name} is {value!r} where {wanted} is expected. Correct the field.")
