from __future__ import annotations

import operator
from typing import Any

import torch

from suture import layers as sl
from suture.graph import Graph, Input, replay, rewire, trace
from suture.graph.drawing.sketching import sketch
from tests.graph.drawn import DIM, TOKENS, box_at, decoder, ends, labels, names, traced


def test_boxes_are_nested_as_the_calls_are() -> None:
    picture = sketch(traced(decoder(2)))
    query = box_at(picture, "blocks.1.attention.heads.projections.query")
    assert names(query.around) == ["", "Backbone", "blocks", "1", "attention", "heads", "projections"]
    assert query.caption == f"Linear({DIM} → {DIM})"


def test_edges_say_shapes_and_how_many_go_along() -> None:
    picture = sketch(traced(decoder(1)))
    assert labels(picture, "embedding", "norm") == [f"B×T×{DIM}"]
    assert labels(picture, "split", "cache") == ["3 of B×2×T×4"]


def test_taking_a_part_of_a_result_is_no_box() -> None:
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        return layer(*args, **kwargs)

    picture = sketch(rewire(traced(decoder(1)), call))
    assert labels(picture, "split", "cache") == ["3 of B×2×T×4"]
    assert not [box for box in picture.boxes if "[" in box.name]


def test_indexing_a_tensor_is_a_box() -> None:
    x = Input("x", shape=(None, 4))
    picture = sketch(Graph(inputs=x, outputs=operator.getitem(x, 0)))
    assert "[ ]" in names(picture.boxes)


def test_inputs_and_outputs_are_marked() -> None:
    picture = sketch(traced(decoder(1)))
    assert list(ends(picture, "input")) == [
        "token_ids",
        "padding_mask",
        "attention_mask",
        "positions",
        "embeddings",
        "cache",
    ]
    assert [name for name, box in ends(picture, "input").items() if not box.optional] == ["token_ids"]
    assert ends(picture, "input")["token_ids"].caption == "B×T int64"
    assert ends(picture, "output")["output"].caption == f"B×T×{DIM}"


def test_what_comes_by_the_context_is_a_tag_and_no_edge() -> None:
    picture = sketch(traced(decoder(3)))
    attends = [box for box in picture.boxes if box.name == "attend"]
    assert [[tag.text for tag in box.takes] for box in attends] == [["mask"]] * 3
    (mask,) = [box for box in picture.boxes if box.name == "causal_mask"]
    assert [tag.text for tag in mask.gives] == ["mask"]
    assert not [edge for edge in picture.edges if edge.source is mask]


def test_what_is_made_for_several_blocks_is_drawn_in_what_holds_them_all() -> None:
    picture = sketch(traced(decoder(3)))
    (mask,) = [box for box in picture.boxes if box.name == "causal_mask"]
    assert mask.parent is not None
    assert mask.parent.path == "blocks"
    assert names(mask.parent.inside) == ["causal_mask", "0", "1", "2"]


def test_a_cache_that_is_advanced_in_place_goes_in_and_out() -> None:
    picture = sketch(traced(decoder(2)))
    assert ends(picture, "input")["cache"].cache
    assert ends(picture, "output")["cache"].caption == "advanced in place"
    caches = [box for box in picture.boxes if box.caption == "KVCache"]
    assert [[(tag.text, tag.updated) for tag in box.takes] for box in caches] == [[("cache", True)]] * 2


def test_a_functional_cache_is_one_input_and_one_output_with_a_part_for_each_layer() -> None:
    graph = traced(decoder(3))
    caches = tuple(Input(f"past_{number}", shape=(None, 2, "past", 4)) for number in range(3))
    longer: list[Any] = []

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(layer, sl.KVCache):
            return layer(*args, **kwargs)
        query, key, value = args
        longer.append(torch.cat([caches[len(longer)], key], 2))
        return query, longer[-1], value

    hidden = replay(graph, {"token_ids": TOKENS}, call)
    inputs = {"token_ids": TOKENS, "past": caches}
    picture = sketch(Graph(inputs=inputs, outputs={"hidden": hidden, "next": longer}, source=graph.root))
    assert ends(picture, "input")["past"].caption == "3 values of B×2×past×4"
    assert ends(picture, "output")["next"].caption == "3 values of B×2×past+T×4"
    made = [box for box in picture.boxes if box.name == "cat"]
    assert [[tag.text for tag in box.takes] for box in made] == [["past[0]"], ["past[1]"], ["past[2]"]]
    assert [[tag.text for tag in box.gives] for box in made] == [["next[0]"], ["next[1]"], ["next[2]"]]


def test_an_input_and_an_output_of_one_name_have_tags_of_two() -> None:
    state = Input("state", shape=(None, 4))

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(layer(*args, **kwargs) + state)
        return made[-1]

    made: list[Any] = []
    graph = trace(sl.Chain(inner=sl.Chain(up=sl.Linear(4, 4))), Input("x", shape=(None, 4)))
    outputs = replay(graph, graph.inputs, call)
    picture = sketch(Graph(inputs={"x": graph.inputs["x"], "state": state}, outputs={"y": outputs, "state": made[0]}))
    assert [tag.text for tag in ends(picture, "input")["state"].gives] == ["state"]
    assert [tag.text for tag in ends(picture, "output")["state"].takes] == ["next state"]


def test_a_layer_that_is_called_twice_is_two_boxes() -> None:
    x, linear = Input("x", shape=(None, 4)), sl.Linear(4, 4)
    picture = sketch(Graph(inputs=x, outputs=linear(linear(x))))
    assert [box.key for box in picture.boxes if box.name == "Linear"] == [
        "Linear:Linear(4 → 4)#1",
        "Linear:Linear(4 → 4)#2",
    ]


def test_a_part_that_was_cut_out_is_drawn_from_its_own_inputs() -> None:
    stack = sl.Stack(*(sl.Residual(up=sl.Linear(4, 4)) for _ in range(3)))
    graph = trace(stack, Input("x", shape=(None, 4)))
    picture = sketch(Graph(inputs=graph["0"].output, outputs=graph["1"].output, source=stack))
    assert labels(picture, "input_0", "up") == ["B×4"]
    assert [box.path for box in picture.boxes if box.name == "up"] == ["1.up"]


def test_a_functional_cache_is_marked_where_it_goes_in_and_out() -> None:
    state, x = Input("state", shape=(None, 4)), Input("x", shape=(None, 4))
    graph = Graph(inputs={"x": x, "state": state}, outputs=(x * 2, state + x))
    picture = sketch(graph, cache=("state", -1))
    assert [(box.name, box.role) for box in picture.boxes if box.cache] == [("state", "input"), ("output 1", "output")]
