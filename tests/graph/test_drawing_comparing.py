from __future__ import annotations

from suture import layers as sl
from suture import select
from suture.adapters import LoRA
from suture.graph import Graph, Input, trace
from suture.graph.drawing.comparing import compare
from suture.graph.drawing.picture import Picture, Status
from suture.graph.drawing.repeats import fold_repeats
from suture.graph.drawing.sketching import sketch
from suture.graph.drawing.view import view
from tests.graph.drawn import box_at, decoder, traced


def compared(new: Graph, old: Graph) -> Picture:
    picture = sketch(new)
    compare(picture, sketch(old))
    return picture


def boxes(picture: Picture, status: Status) -> list[str]:
    return [box.path or box.name for box in picture.boxes if box.status == status]


def edges(picture: Picture, status: Status) -> list[tuple[str, str]]:
    return [(edge.source.name, edge.target.name) for edge in picture.edges if edge.status == status]


def chain() -> sl.Chain:
    return sl.Chain(up=sl.Linear(4, 8), activation=sl.ReLU(), down=sl.Linear(8, 4))


X = Input("x", shape=(None, 4))


def test_nothing_changed_between_equal_graphs() -> None:
    picture = compared(trace(chain(), X), trace(chain(), X))
    assert not picture.compared


def test_what_was_put_in_is_added_with_its_edges() -> None:
    model = chain()
    before = trace(model, X)
    select(model, "activation").insert_after(sl.Dropout(0.1))
    picture = compared(trace(model, X), before)
    assert boxes(picture, "added") == ["Dropout"]
    assert boxes(picture, "removed") == []
    assert edges(picture, "added") == [("activation", "Dropout"), ("Dropout", "down")]
    assert edges(picture, "removed") == [("activation", "down")]


def test_what_was_taken_out_is_drawn_where_it_was() -> None:
    model = chain()
    before = trace(model, X)
    select(model, "activation").remove()
    picture = compared(trace(model, X), before)
    removed = box_at(picture, "activation")
    assert removed.status == "removed"
    assert removed.parent is not None
    assert [box.name for box in removed.parent.inside] == ["up", "activation", "down"]
    assert edges(picture, "removed") == [("up", "activation"), ("activation", "down")]


def test_another_configuration_at_the_same_path_is_another_layer() -> None:
    model = chain()
    before = trace(model, X)
    select(model, "activation").replace(sl.GELU())
    picture = compared(trace(model, X), before)
    assert (boxes(picture, "added"), boxes(picture, "removed")) == (["activation"], ["activation"])


def test_an_adapter_is_added_around_the_layer_that_it_adapts() -> None:
    model = decoder(2)
    before = traced(model)
    LoRA.on(model, "query", rank=2)
    picture = compared(traced(model), before)
    query = box_at(picture, "blocks.0.attention.heads.projections.query")
    assert query.status == "same"
    assert query.parent is not None
    assert query.parent.status == "added"
    assert boxes(picture, "removed") == []


def test_an_input_that_was_added_and_its_tags_are_marked() -> None:
    shift = sl.Sum(sl.Identity(), sl.UseContext("side", "shift", default=0.0))
    model = sl.Chain(inner=sl.Chain(sl.Linear(4, 4)))
    before = trace(model, X)
    select(model, "inner.Linear").insert_after(shift)
    picture = compared(trace(model, X), before)
    (added,) = [box for box in picture.boxes if box.role == "input" and box.status == "added"]
    assert [(tag.text, tag.status) for tag in added.gives] == [("shift", "added")]


def test_blocks_that_changed_alike_fold_and_others_do_not() -> None:
    model = decoder(6)
    before = traced(model)
    select(model, "blocks.2.feedforward").remove()
    picture = compared(traced(model), before)
    fold_repeats(picture)
    assert [(box.name, box.turns) for box in picture.boxes if box.role == "repeat"] == [("0..1", 2), ("3..5", 3)]


def test_what_did_not_change_is_closed_by_default() -> None:
    model = decoder(1)
    before = traced(model)
    select(model, "feedforward.dense.activation").replace(sl.ReLU())
    picture = compared(traced(model), before)
    closed = {box.path for box in view(picture).closed}
    assert "blocks.0.attention" in closed
    assert "blocks.0.feedforward" not in closed
