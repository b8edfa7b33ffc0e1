from __future__ import annotations

import operator
from typing import Any, cast

import pytest

from suture import layers as sl


@pytest.mark.parametrize(("given", "returned"), [((1,), 1), ((1, 2), (1, 2)), ((), ())])
def test_identity_returns_what_it_receives(given: tuple[Any, ...], returned: Any) -> None:
    assert sl.Identity()(*given) == returned


def test_lambda_calls_its_function_with_all_arguments() -> None:
    assert sl.Lambda(operator.sub)(5, 3) == 2


def test_lambda_refuses_what_cannot_be_called() -> None:
    with pytest.raises(TypeError, match="Lambda takes a function"):
        sl.Lambda(cast("Any", 3))


def test_get_arg_returns_one_argument() -> None:
    assert (sl.GetArg(0)("a", "b"), sl.GetArg(1)("a", "b"), sl.GetArg(-1)("a", "b")) == ("a", "b", "b")


@pytest.mark.parametrize("index", [2, -3])
def test_get_arg_says_how_many_there_were(index: int) -> None:
    with pytest.raises(IndexError, match=r"was called with 2 arguments"):
        sl.GetArg(index)("a", "b")


def test_use_context_returns_the_entry_whatever_it_is_called_with() -> None:
    model = sl.Chain(sl.UseContext("side", "x"))
    assert model("ignored", context={"side": {"x": "read"}}) == "read"


def test_use_context_has_a_default_where_it_was_given_one() -> None:
    assert sl.Chain(sl.UseContext("side", "x", default=None))("ignored") is None
