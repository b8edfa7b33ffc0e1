from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from suture.weights.checkpoint import CheckpointError
from suture.weights.fields import Fields


def test_what_was_taken_counts_as_understood() -> None:
    fields = Fields({"a": 1, "b": 2.5, "c": True, "d": "text", "e": None, "f": {"g": 3}}, "here")

    taken = (fields.integer("a"), fields.number("b"), fields.flag("c", False), fields.text("d"), fields.take("e"))
    nested = fields.nested("f")

    assert taken == (1, 2.5, True, "text", None)
    assert nested is not None
    assert nested.integer("g") == 3
    fields.finish()
    nested.finish()


def test_what_is_left_is_named_with_its_value() -> None:
    fields = Fields({"width": 3, "softcap": 30.0, "mode": "odd"}, "config.json")
    fields.integer("width")

    with pytest.raises(CheckpointError, match=r"config.json: fields .*: softcap = 30.0, mode = 'odd'. They may change"):
        fields.finish()


def test_a_field_that_is_missing_or_null_takes_its_default() -> None:
    fields = Fields({"a": None}, "here")

    assert (fields.integer("a", 4), fields.number("b", 0.5), fields.flag("c", True)) == (4, 0.5, True)
    assert fields.nested("d") is None


def test_a_field_without_default_has_to_be_there() -> None:
    with pytest.raises(CheckpointError, match="here: the field width is missing"):
        Fields({}, "here").integer("width")


WRONG: list[tuple[Callable[[Fields], object], object, str]] = [
    (lambda fields: fields.integer("a"), 1.5, "a whole number of at least 1"),
    (lambda fields: fields.integer("a"), True, "a whole number of at least 1"),
    (lambda fields: fields.integer("a"), 0, "a whole number of at least 1"),
    (lambda fields: fields.integer("a"), 10**30, "a whole number of at least 1"),
    (lambda fields: fields.integer("a", least=0), -1, "a whole number of at least 0"),
    (lambda fields: fields.number("a"), "1", "a number above 0"),
    (lambda fields: fields.number("a"), 0.0, "a number above 0"),
    (lambda fields: fields.number("a"), math.inf, "a number above 0"),
    (lambda fields: fields.number("a"), math.nan, "a number above 0"),
    (lambda fields: fields.flag("a", False), 1, "true or false"),
    (lambda fields: fields.text("a"), 1, "a text"),
    (lambda fields: fields.nested("a"), [1], "an object"),
]


@pytest.mark.parametrize(("read", "value", "wanted"), WRONG)
def test_a_value_of_the_wrong_type_is_refused(read: Callable[[Fields], object], value: object, wanted: str) -> None:
    with pytest.raises(CheckpointError, match=rf"here: a is .* where {wanted} is expected"):
        read(Fields({"a": value}, "here"))


def test_a_field_may_be_understood_at_some_values_only() -> None:
    accepted = Fields({"a": 0.0, "b": None}, "here")
    accepted.only("a", 0)
    accepted.only("b", 0)
    accepted.only("c", 0)
    accepted.finish()

    refused = Fields({"a": 0.1}, "here")
    refused.only("a", 0)
    with pytest.raises(CheckpointError, match=r"a = 0.1"):
        refused.finish()


def test_an_optional_number_is_none_where_it_is_null_and_the_default_where_it_is_not_there() -> None:
    fields = Fields({"null": None, "cap": 30.0, "also null": None, "window": 5}, "here")

    assert [fields.optional_number(name, 50.0) for name in ("null", "cap", "absent")] == [None, 30.0, 50.0]
    assert [fields.optional_integer(name, 7) for name in ("also null", "window", "absent")] == [None, 5, 7]
    assert fields.optional_number("absent", None) is None
    fields.finish()
