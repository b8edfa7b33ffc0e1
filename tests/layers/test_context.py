from __future__ import annotations

import copy
import operator
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import Context
from suture import layers as sl
from suture.layers import Derived, MissingContextError, Read


def total(*numbers: int) -> int:
    return sum(numbers)


class TestRead:
    def test_a_read_without_default_is_required(self) -> None:
        assert Read("scope", "key").required
        assert not Read("scope", "key", default=None).required

    def test_required_survives_copies(self) -> None:
        read = Read("scope", "key")
        assert copy.deepcopy(read).required
        assert pickle.loads(pickle.dumps(read)).required

    def test_a_missing_entry_prints_the_block_to_write(self) -> None:
        with pytest.raises(MissingContextError) as caught:
            sl.Chain(sl.UseContext("side", "x"))(1)
        message = str(caught.value)
        assert "with model.context(side={'x': value}):" in message
        assert "Given: nothing" in message

    def test_a_missing_entry_says_what_was_given(self) -> None:
        model = sl.Chain(sl.UseContext("side", "x"), sl.UseContext("side", "y"))
        with pytest.raises(MissingContextError, match=r"Given: side\.y"):
            model(1, context={"side": {"y": 2}})


class TestDerived:
    def made(self, calls: list[int], value: int = 1) -> sl.Chain:
        def count(x: int, factor: int) -> int:
            calls.append(factor)
            return x * factor

        class Reader(nn.Module):
            def __init__(self, factor: int) -> None:
                super().__init__()
                self.reads = {"derived": Derived(count, reads={"x": ("side", "x")}, factor=factor)}

            def forward(self, *args: Any, derived: int) -> int:
                return derived

        return sl.Chain(sl.Parallel(Reader(2), sl.Chain(Reader(2)), Reader(3)))

    def test_it_is_made_once_per_call_for_all_that_declare_the_same(self) -> None:
        calls: list[int] = []
        model = self.made(calls)
        assert model(context={"side": {"x": 5}}) == (10, 10, 15)
        assert calls == [2, 3]

    def test_each_call_makes_its_own(self) -> None:
        calls: list[int] = []
        model = self.made(calls)
        assert model(context={"side": {"x": 5}})[0] == 10
        assert model(context={"side": {"x": 7}})[0] == 14

    def test_what_it_was_made_of_can_be_written_anew(self) -> None:
        calls: list[int] = []
        inner = self.made(calls)
        model = sl.Chain(inner, sl.Lambda(total), sl.SetContext("side", "x"), self.made(calls))
        assert model(context={"side": {"x": 1}})[0] == 2 * (2 + 2 + 3)

    def test_another_entry_written_makes_nothing_anew(self) -> None:
        calls: list[int] = []
        inner = self.made(calls)
        again = inner.structural_copy()
        sl.Chain(inner, sl.Lambda(total), sl.SetContext("side", "y"), again)(context={"side": {"x": 1}})
        assert calls == [2, 3]

    def test_what_it_reads_is_an_input_of_the_tree(self) -> None:
        assert [read.identity for read in self.made([]).context_inputs] == ["side.x"]


class TestContext:
    def test_a_dictionary_is_not_changed(self) -> None:
        given: dict[str, Any] = {"side": {"x": 1}}
        sl.Chain(sl.UseContext("side", "x"), sl.SetContext("side", "x"), sl.SetContext("side", "y"))(context=given)
        assert given == {"side": {"x": 1}}

    def test_a_context_of_ones_own_shows_what_the_call_wrote(self) -> None:
        context = Context()
        sl.Chain(sl.SetContext("side", "x"))(7, context=context)
        assert context.get("side", "x") == 7

    def test_what_a_call_wrote_is_not_given_to_the_next(self) -> None:
        context = Context({"side": {"x": 1}})
        model = sl.Chain(sl.UseContext("side", "x"), sl.Lambda(partial(operator.add, 1)), sl.SetContext("side", "x"))
        assert [model(context=context) for _ in range(3)] == [2, 2, 2]
        assert context.get("side", "x") == 2

    def test_an_entry_can_be_given_by_set(self) -> None:
        context = Context()
        context.set("side", "x", 4)
        assert sl.Chain(sl.UseContext("side", "x"))(context=context) == 4

    def test_a_key_that_was_written_does_not_survive_the_call(self) -> None:
        model = sl.Chain(sl.SetContext("side", "x"), sl.UseContext("side", "y", default="none"))
        model(1)
        with pytest.raises(MissingContextError):
            sl.Chain(model, sl.UseContext("side", "z"))(1)
        assert model.context_inputs[0].identity == "side.y"

    def test_a_declared_empty_scope_can_be_written_and_read(self) -> None:
        class Declares(sl.Chain):
            def init_context(self) -> dict[str, dict[str, Any]]:
                return {"side": {}}

        model = Declares(sl.SetContext("side", "x"), sl.Passthrough(), sl.UseContext("side", "x"))
        assert model(3) == 3

    def test_an_initial_entry_is_a_default(self) -> None:
        class Declares(sl.Chain):
            def init_context(self) -> dict[str, dict[str, Any]]:
                return {"side": {"x": "initial"}}

        model = sl.Chain(Declares(sl.UseContext("side", "x")))
        assert model() == "initial"
        assert model(x="given") == "given"
        assert model() == "initial"


def test_the_inputs_of_a_tree_are_what_is_read_before_it_is_written() -> None:
    model = sl.Chain(
        sl.UseContext("side", "first"),
        sl.SetContext("side", "made"),
        sl.Chain(sl.UseContext("side", "made"), sl.UseContext("side", "last", default=None)),
    )
    assert [(read.identity, read.required) for read in model.context_inputs] == [
        ("side.first", True),
        ("side.last", False),
    ]


def test_the_inputs_follow_every_edit() -> None:
    model = sl.Chain(inner=sl.Chain(sl.Identity()))
    assert model.context_inputs == ()
    edit = model.layer("inner", sl.Chain).append(sl.UseContext("side", "x"))
    assert [read.key for read in model.context_inputs] == ["x"]
    edit.undo()
    assert model.context_inputs == ()


def test_a_plain_module_can_declare_what_it_reads() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reads = {"scale": ("side", "scale")}

        def forward(self, x: Tensor, scale: float) -> Tensor:
            return x * scale

    assert torch.equal(sl.Chain(Scaled())(torch.ones(2), scale=3), 3 * torch.ones(2))


class Printed:
    """A value that is printed like any other of its kind."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return "Printed()"


def scaled(x: int, by: Any) -> Any:
    return x * (by.number if isinstance(by, Printed) else by)


def adder(number: int) -> Any:
    def add(x: int) -> int:
        return x + number

    return add


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Derived(scaled, {"x": ("s", "x")}, by=Printed(2)), Derived(scaled, {"x": ("s", "x")}, by=Printed(3))),
        (
            Derived(scaled, {"x": ("s", "x")}, by=torch.tensor(1.00001)),
            Derived(scaled, {"x": ("s", "x")}, by=torch.tensor(1.00002)),
        ),
        (Derived(adder(2), {"x": ("s", "x")}), Derived(adder(3), {"x": ("s", "x")})),
        (
            Derived(adder(2), {"x": Read("s", "absent", default=2)}),
            Derived(adder(2), {"x": Read("s", "absent", default=3)}),
        ),
    ],
    ids=["parameters", "tensors", "functions", "defaults"],
)
def test_derived_values_that_are_printed_alike_are_not_shared(one: Derived, other: Derived) -> None:
    shared = Context({"s": {"x": 5}})
    assert [shared.read(one), shared.read(other)] == [Context({"s": {"x": 5}}).read(each) for each in (one, other)]
    assert shared.read(one) != shared.read(other)


def test_what_a_tree_writes_is_listed_and_follows_every_edit() -> None:
    model = sl.Chain(sl.SetContext("side", "x"), sl.Residual(sl.SetContext("inner", "y")))
    assert model.context_outputs == (("side", "x"), ("inner", "y"))
    edit = model.pop(0)
    assert model.context_outputs == (("inner", "y"),)
    edit.undo()
    context = Context()
    model(torch.ones(2), context=context)
    assert torch.equal(context.get("inner", "y"), torch.ones(2))
