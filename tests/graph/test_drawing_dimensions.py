from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.graph import Graph, Input, trace
from suture.graph.drawing.dimensions import Dimensions
from suture.graph.values import Value


def told(output: Any, *inputs: Value) -> str:
    return Dimensions(Graph(inputs=list(inputs), outputs=output)).told(output)


def test_open_dimensions_are_letters_and_fixed_ones_numbers() -> None:
    x = Input("x", shape=(None, None, 4))
    assert told(sl.Linear(4, 2)(x), x) == "B×T×2"


def test_a_named_dimension_goes_by_its_name() -> None:
    x = Input("x", shape=("rows", 4))
    assert told(torch.relu(x), x) == "rows×4"


def test_a_fixed_size_is_no_open_one_that_looks_alike() -> None:
    # 2 and 5 are what stands for the open dimensions.
    x = Input("x", shape=(None, None, 2, 5))
    assert told(torch.relu(x), x) == "B×T×2×5"


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "B·T×4": lambda x: x.flatten(0, 1),
    "T×B×4": lambda x: x.transpose(0, 1),
    "B×3T×4": lambda x: x.repeat(1, 3, 1),
    "B×T+1×4": lambda x: torch.nn.functional.pad(x, (0, 0, 1, 0)),
    "B×T-1×4": lambda x: x[:, 1:],
    "4B·T": lambda x: x.flatten(),
    "scalar": lambda x: x.sum(),
    "B×T×4 bool": lambda x: x > 0,
}


@pytest.mark.parametrize("shape", MADE)
def test_sizes_that_are_made_of_open_ones_say_how(shape: str) -> None:
    x: Any = Input("x", shape=(None, None, 4))
    assert told(MADE[shape](x), x) == shape


def test_a_sum_is_told_from_a_multiple_of_the_same_size() -> None:
    # 7 + 5 is 6 times 2, and 11 + 7 is 6 times 3.
    past, x = Input("past", shape=(None, "past", 4)), Input("x", shape=(None, None, 4))
    assert told(torch.cat([past, x], 1), past, x) == "B×past+T×4"


def test_sizes_of_a_part_that_was_cut_out_are_told_by_the_inputs_before_it() -> None:
    x = Input("x", shape=(None, None, 4))
    between: Any = sl.Linear(4, 6)(x)
    graph = Graph(inputs=between, outputs=sl.Linear(6, 2)(between))
    assert Dimensions(graph).told(graph.outputs) == "B×T×2"
    assert Dimensions(graph).told(between) == "B×T×6"


class FirstSizeOnly(nn.Module):
    """Refuses what it was not made for."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        if input.shape[0] != 2:
            raise ValueError("two rows only")
        return input + 1


def test_a_layer_that_does_not_run_with_other_sizes_is_drawn_all_the_same() -> None:
    graph = trace(FirstSizeOnly(), Input("x", shape=(None, 4)))
    assert Dimensions(graph).told(graph.outputs) == "B×4"
