"""The call rule, and what each composite makes of its branches."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from suture import layers as sl


class Pair(nn.Module):
    """Returns its argument twice, as a tuple."""

    def forward(self, x: Any) -> tuple[Any, Any]:
        return x, x


class Listed(nn.Module):
    """Returns its arguments as one list."""

    def forward(self, *args: Any) -> list[Any]:
        return list(args)


def plus(number: float) -> sl.Lambda:
    return sl.Lambda(partial(operator.add, number))


def times(number: float) -> sl.Lambda:
    return sl.Lambda(partial(operator.mul, number))


class TestCallRule:
    def test_children_are_called_one_after_another(self) -> None:
        assert sl.Chain(plus(1), times(10))(2) == 30

    def test_a_tuple_is_spread_over_the_next_arguments(self) -> None:
        assert sl.Chain(Pair(), sl.Lambda(operator.add))(3) == 6

    @pytest.mark.parametrize("value", [[1, 2], {"a": 1}, None, torch.ones(2)])
    def test_anything_else_is_one_argument(self, value: Any) -> None:
        received = sl.Chain(sl.Lambda(lambda: value), Listed())()
        assert len(received) == 1
        assert received[0] is value

    def test_the_last_tuple_is_returned_as_it_is(self) -> None:
        assert sl.Chain(Pair())(1) == (1, 1)

    @pytest.mark.parametrize(("given", "returned"), [((1,), 1), ((1, 2), (1, 2))])
    def test_an_empty_chain_returns_its_input(self, given: tuple[Any, ...], returned: Any) -> None:
        assert sl.Chain()(*given) == returned

    def test_several_arguments_reach_the_first_child(self) -> None:
        assert sl.Chain(Listed())(1, 2, 3) == [1, 2, 3]

    def test_keywords_are_not_passed_on(self) -> None:
        with pytest.raises(TypeError, match="nothing in it reads that"):
            sl.Chain(nn.Linear(2, 2))(torch.ones(2), input=torch.ones(2))


class TestBranches:
    def test_parallel_gives_each_child_the_same_arguments(self) -> None:
        assert sl.Parallel(plus(1), times(10))(2) == (3, 20)

    def test_a_parallel_of_one_child_returns_a_tuple_too(self) -> None:
        assert sl.Parallel(plus(1))(2) == (3,)

    def test_distribute_gives_each_child_one_argument(self) -> None:
        assert sl.Distribute(plus(1), times(10))(2, 5) == (3, 50)

    def test_distribute_refuses_another_number_of_arguments(self) -> None:
        with pytest.raises(TypeError, match="its 2 children"):
            sl.Chain(sl.Distribute(plus(1), times(10)))(1, 2, 3)

    def test_sum_adds(self) -> None:
        assert sl.Sum(plus(1), times(10), plus(0))(2) == 3 + 20 + 2

    def test_product_multiplies(self) -> None:
        assert sl.Product(plus(1), times(10))(2) == 60

    def test_residual_adds_its_input_to_its_chain(self) -> None:
        assert sl.Residual(plus(1), times(10))(2) == 2 + 30

    def test_residual_of_several_arguments_adds_the_first(self) -> None:
        assert sl.Residual(sl.Lambda(operator.mul))(2, 5) == 2 + 10

    def test_an_empty_residual_doubles(self) -> None:
        assert sl.Residual()(4) == 8

    def test_concatenate_joins_along_its_dimension(self) -> None:
        x = torch.arange(4.0).view(2, 2)
        assert torch.equal(sl.Concatenate(times(1), times(2), dim=0)(x), torch.cat([x, 2 * x], dim=0))
        assert torch.equal(sl.Concatenate(times(1), times(2))(x), torch.cat([x, 2 * x], dim=-1))

    def test_passthrough_returns_its_input(self) -> None:
        seen: list[int] = []
        assert sl.Passthrough(sl.Lambda(seen.append))(7) == 7
        assert seen == [7]

    @pytest.mark.parametrize("kind", [sl.Sum, sl.Product])
    def test_a_branch_with_several_results_cannot_be_combined(self, kind: type[sl.Composite]) -> None:
        with pytest.raises(TypeError, match="A branch returned 2"):
            kind(plus(1), Pair())(1)

    @pytest.mark.parametrize("kind", [sl.Sum, sl.Product])
    def test_nothing_cannot_be_combined(self, kind: type[sl.Composite]) -> None:
        with pytest.raises(TypeError, match="no children"):
            kind()(1)

    def test_residual_needs_an_input(self) -> None:
        with pytest.raises(TypeError, match="called without one"):
            sl.Residual(sl.Lambda(lambda: 1))()

    def test_sums_nest(self) -> None:
        assert sl.Sum(sl.Product(plus(1), plus(2)), sl.Chain(times(3), sl.Residual(plus(1))))(1) == 6 + 3 + 4


class TestStack:
    def test_blocks_are_numbered(self) -> None:
        assert list(sl.Stack(nn.ReLU(), nn.ReLU()).state_dict()) == []
        assert [place.path for place in sl.Stack(nn.ReLU(), nn.ReLU()).places()] == ["0", "1"]

    def test_a_like_block_takes_the_next_number_never_used(self) -> None:
        stack = sl.Stack(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
        stack.pop()
        stack.insert(0, nn.Linear(1, 1))
        assert [place.path for place in stack.places()] == ["3", "0", "1"]

    def test_another_layer_takes_the_name_of_its_class(self) -> None:
        stack = sl.Stack(nn.Linear(1, 1))
        stack.append(nn.Dropout(0.1))
        assert [place.path for place in stack.places()] == ["0", "Dropout"]

    def test_an_empty_stack_begins_at_nought(self) -> None:
        stack = sl.Stack()
        stack.append(nn.ReLU())
        assert [place.path for place in stack.places()] == ["0"]


class TestContext:
    def test_set_context_writes_for_later_readers_and_passes_on(self) -> None:
        model = sl.Chain(sl.SetContext("side", "x"), times(10), sl.Parallel(sl.Identity(), sl.UseContext("side", "x")))
        assert model(2) == (20, 2)

    def test_set_context_reaches_other_branches_and_depths(self) -> None:
        model = sl.Chain(
            sl.Parallel(sl.Chain(sl.Chain(sl.SetContext("side", "x"))), sl.Chain(sl.UseContext("side", "x"), times(3)))
        )
        assert model(2) == (2, 6)
