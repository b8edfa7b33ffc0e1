from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from suture import layers as sl
from suture import select
from suture.graph import Graph, Input, replay, rewire, trace
from suture.graph.drawing.picture import Box, Picture
from suture.graph.drawing.repeats import fold_repeats
from suture.graph.drawing.sketching import sketch
from suture.graph.drawing.view import view
from tests.graph.drawn import DIM, Scale, box_at, decoder, names, traced


def folded(graph: Graph) -> Picture:
    picture = sketch(graph)
    fold_repeats(picture)
    return picture


def repeats(picture: Picture) -> list[tuple[str, int]]:
    return [(box.name, box.turns) for box in picture.boxes if box.role == "repeat"]


def chain(*layers: nn.Module) -> Graph:
    return trace(sl.Chain({str(number): layer for number, layer in enumerate(layers)}), Input("x", shape=(None, 4)))


def blocks(*widths: int) -> list[nn.Module]:
    return [sl.Residual(up=sl.Linear(4, width), down=sl.Linear(width, 4)) for width in widths]


def test_blocks_that_are_alike_fold_into_one() -> None:
    picture = folded(traced(decoder(12)))
    assert repeats(picture) == [("0..11", 12)]
    assert names(picture.boxes).count("query") == 12


def test_what_differs_inside_ends_a_repeat() -> None:
    assert repeats(folded(chain(*blocks(8, 8, 8, 6, 8, 8)))) == [("0..2", 3), ("4..5", 2)]


def test_blocks_in_turn_fold_as_turns() -> None:
    picture = folded(traced(decoder(12, windows=(3, 3, None))))
    assert repeats(picture) == [("0..11", 4), ("0..1", 2), ("3..4", 2), ("6..7", 2), ("9..10", 2)]


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_turns_are_found_wherever_they_begin(before: int) -> None:
    others = [sl.Linear(4, 4), sl.ReLU(), sl.Tanh()][:before]
    assert repeats(folded(chain(*others, *blocks(8, 6, 8, 6)))) == [(f"{before}..{before + 3}", 2)]


def test_what_is_put_after_every_block_is_in_the_turn() -> None:
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        result = layer(*args, **kwargs)
        return Scale()(result) if isinstance(layer, sl.Residual) else result

    picture = folded(rewire(chain(*blocks(8, 8, 8)), call))
    (repeat,) = [box for box in picture.boxes if box.role == "repeat"]
    assert repeat.turns == 3
    assert names(repeat.turn) == ["0", "0+Scale"]


def test_a_block_whose_result_is_also_returned_is_not_hidden() -> None:
    graph = chain(*blocks(8, 8, 8, 8, 8))
    both = Graph(inputs=graph.inputs, outputs=(graph.outputs, graph["2"].output), source=graph.root)
    assert repeats(folded(both)) == [("0..1", 2), ("3..4", 2)]


def test_a_block_that_gives_to_more_than_the_next_ends_a_repeat() -> None:
    layers = blocks(8, 8, 8, 8, 8, 8)

    def model(value: Any) -> Any:
        results = [value]
        for layer in layers:
            results.append(layer(results[-1]))
        return results[-1] + results[3]

    graph = trace(model, Input("x", shape=(None, 4)))
    assert repeats(folded(graph)) == [("Residual..Residual_3", 3), ("Residual_4..Residual_6", 3)]


@pytest.mark.parametrize(
    ("fourth", "found"),
    [("x", [("Graph..Graph_6", 6)]), ("y", [("Graph..Graph_3", 3), ("Graph_5..Graph_6", 2)])],
)
def test_a_block_that_takes_something_else_ends_a_repeat(fourth: str, found: list[tuple[str, int]]) -> None:
    sides = {name: Input(name, shape=(None, 4)) for name in ("x", "y")}
    value: Any = sides["x"] + sides["y"]
    for number in range(6):
        first, second = Input("first", shape=(None, 4)), Input("second", shape=(None, 4))
        layer = Graph(inputs=[first, second], outputs=sl.Linear(4, 4)(first) + second)
        value = layer(value, sides[fourth] if number == 3 else sides["x"])
    assert repeats(folded(Graph(inputs=sides, outputs=value))) == found


def test_parallel_branches_do_not_fold() -> None:
    parallel = sl.Sum(*(sl.Linear(4, 4) for _ in range(5)))
    assert repeats(folded(trace(parallel, Input("x", shape=(None, 4))))) == []


def test_an_edited_block_stands_by_itself() -> None:
    model = decoder(6)
    select(model, "blocks.3.feedforward").remove()
    assert repeats(folded(traced(model))) == [("0..2", 3), ("4..5", 2)]


def test_a_folded_repeat_is_seen_once_with_what_goes_in_and_out() -> None:
    picture = folded(traced(decoder(12)))
    seen = view(picture, closed=())
    visible = {box for edge in seen.edges for box in (edge.source, edge.target)}
    assert [box.path for box in visible if box.name == "query"] == ["blocks.0.attention.heads.projections.query"]
    last = [edge for edge in seen.edges if edge.target is box_at(picture, "norm")]
    assert [(edge.source.parent and edge.source.parent.path, edge.label) for edge in last] == [
        ("blocks.0.feedforward", f"B×T×{DIM}")
    ]


def test_parts_of_a_structure_are_not_told_apart_in_a_folded_repeat() -> None:
    states = tuple(Input(f"state_{number}", shape=(None, 4)) for number in range(3))
    given = iter(states)

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        result = layer(*args, **kwargs)
        return result + next(given) if isinstance(layer, sl.Linear) else result

    graph = chain(*(sl.Residual(up=sl.Linear(4, 4)) for _ in range(3)))
    outputs = replay(graph, graph.inputs, call)
    picture = folded(Graph(inputs={**graph.inputs, "state": states}, outputs=outputs, source=graph.root))
    seen = view(picture, closed=())
    first: Box = next(box for box in picture.boxes if box.takes)
    assert repeats(picture) == [("0..2", 3)]
    assert [tag.text for tag in seen.takes(first)] == ["state[…]"]


def test_a_closed_box_takes_and_gives_for_what_is_inside() -> None:
    picture = folded(traced(decoder(3)))
    attention = box_at(picture, "blocks.0.attention")
    seen = view(picture, closed=[attention])
    assert seen.inside(attention) == []
    assert [tag.text for tag in seen.takes(attention)] == ["cache", "mask"]
    assert [edge.source.name for edge in seen.edges if edge.target is attention] == ["embedding"]


def test_by_default_the_deepest_are_closed_where_there_is_no_room() -> None:
    widths = range(5, 65)
    picture = folded(chain(*blocks(*widths)))
    seen = view(picture)
    assert sorted(box.path for box in seen.closed) == sorted(str(number) for number in range(len(widths)))
