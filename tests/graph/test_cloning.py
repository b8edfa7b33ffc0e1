"""Clones, deep copies and pickled graphs: the same meaning with weights of their own."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from suture import Graph, Input, clone, rewire, select, trace
from suture import layers as sl
from suture.models import Backbone, TokenEmbedding

X = torch.linspace(-1, 1, 12).reshape(3, 4)
IDS = torch.tensor([[3, 1, 4, 1, 5]])


def unpickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def reloaded(model: nn.Module) -> Any:
    written = io.BytesIO()
    torch.save(model, written)
    written.seek(0)
    return torch.load(written, weights_only=False)


copying = pytest.mark.parametrize("copied", [clone, copy.deepcopy, unpickled, reloaded])


def x_input(name: str = "x") -> Input:
    return Input(name, shape=(None, 4))


def tree() -> Any:
    return sl.Chain(
        up=sl.Linear(4, 4), inner=sl.Residual(norm=sl.RMSNorm(4), mix=nn.Linear(4, 4)), down=sl.Linear(4, 2)
    )


def unchanged(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


def doubled(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    y = layer(*args, **kwargs)
    return 2 * y if isinstance(layer, nn.Linear) else y


@copying
def test_a_copy_means_the_same_with_weights_of_its_own(copied: Callable[[nn.Module], Any]) -> None:
    graph = trace(tree(), x_input())
    other = copied(graph)
    assert list(other.state_dict()) == list(graph.state_dict())
    assert torch.equal(other(X), graph(X))
    before = graph(X)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(X).any()
    assert torch.equal(graph(X), before)


@copying
def test_a_copy_is_rewired_copied_and_cut_as_the_graph_is(copied: Callable[[nn.Module], Any]) -> None:
    graph = rewire(tree(), doubled, inputs=x_input())
    other = copied(copied(graph))
    assert torch.equal(rewire(other, doubled)(X), rewire(graph, doubled)(X))
    part = Graph(inputs=other.inputs, outputs=other["inner"].output)
    assert torch.equal(part(X), Graph(inputs=graph.inputs, outputs=graph["inner"].output)(X))


@copying
def test_a_copy_goes_on_where_further_calls_are_recorded(copied: Callable[[nn.Module], Any]) -> None:
    other = copied(trace(tree(), x_input()))
    longer = Graph(inputs=other.inputs, outputs=torch.relu(other.outputs + 1))
    assert torch.equal(longer(X), torch.relu(other(X) + 1))


@copying
def test_edits_of_a_copy_are_its_own(copied: Callable[[nn.Module], Any]) -> None:
    graph = trace(tree(), x_input())
    before, other = graph(X), copied(graph)
    # Both have run, so that both have the function that the edit changes.
    other(X)
    select(other, "up").replace(lambda layer: sl.Identity())
    assert not torch.equal(other(X), before)
    assert torch.equal(graph(X), before)


@copying
def test_an_edited_graph_is_copied_with_its_edits(copied: Callable[[nn.Module], Any]) -> None:
    graph = trace(tree(), x_input())
    edit = select(graph, "up").wrap(lambda layer: sl.Sum(layer, sl.Linear(4, 4)))
    edited, other = graph(X), copied(graph)
    edit.undo()
    assert torch.equal(other(X), edited)
    assert torch.equal(rewire(other, unchanged)(X), edited)


@copying
def test_shared_layers_and_tied_weights_stay_so(copied: Callable[[nn.Module], Any]) -> None:
    embedding, head, twice = sl.Embedding(10, 4), sl.Linear(4, 10, bias=False), sl.Linear(4, 4)
    head.weight = embedding.weight
    ids = Input("ids", shape=(None, None), dtype=torch.long)
    graph = Graph(inputs=ids, outputs=head(twice(torch.relu(twice(embedding(ids))))))
    other = copied(graph)
    assert len(list(other.parameters())) == 3
    assert len(other["Linear"].calls) == 2
    assert torch.equal(other(IDS), graph(IDS))


@copying
def test_tensors_of_functions_are_copied_under_their_names(copied: Callable[[nn.Module], Any]) -> None:
    x, first, second = x_input(), nn.Parameter(torch.ones(4)), torch.full((4,), 2.0)

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return layer(*args, **kwargs) + first

    graph = rewire(Graph(inputs=x, outputs=sl.Linear(4, 4)(x) * second), call)
    other = copied(graph.to(torch.float64))
    assert {key: type(value) for key, value in other.named_parameters()} == {
        key: type(value) for key, value in graph.named_parameters()
    }
    assert list(other.state_dict()) == list(graph.state_dict())
    assert torch.equal(other(X.double()), graph(X.double()))
    with torch.no_grad():
        other.get_parameter("constant_1").zero_()
    assert first.all()


@copying
def test_a_long_graph_is_copied(copied: Callable[[nn.Module], Any]) -> None:
    x = x_input()
    y: Any = x
    for _ in range(1500):
        y = y + 1
    graph = Graph(inputs=x, outputs=y)
    assert torch.equal(copied(graph)(X), graph(X))


@copying
def test_a_backbone_as_a_graph_is_copied(copied: Callable[[nn.Module], Any]) -> None:
    attention = sl.SelfAttention(8, num_heads=2, causal=True, rotary=sl.Rotary(4))
    backbone = Backbone(embedding=TokenEmbedding(10, 8), attention=sl.Residual(attention))
    graph = trace(backbone)
    other = copied(graph)
    mask = torch.tensor([[False, True, True, True, True]])
    assert torch.equal(other(IDS, padding_mask=mask), backbone(IDS, padding_mask=mask))
    cache = other.init_cache(1, 8)
    assert torch.equal(other(IDS, cache=cache), backbone(IDS, cache=backbone.init_cache(1, 8)))


def test_a_graph_is_copied_with_the_tree_that_it_stands_in() -> None:
    model = sl.Chain(graph=trace(tree(), x_input()), act=sl.ReLU())
    for other in (copy.deepcopy(model), unpickled(model), clone(model)):
        assert torch.equal(other(X), model(X))
        assert not {id(each) for each in other.parameters()} & {id(each) for each in model.parameters()}


def test_a_compiled_graph_is_copied_as_it_was_before() -> None:
    graph = trace(tree(), x_input()).compile(backend="eager")
    wanted = graph(X)
    assert torch.equal(copy.deepcopy(graph)(X), wanted)


def test_hooks_and_modes_are_copied() -> None:
    graph = trace(tree(), x_input()).eval()
    graph.register_forward_hook(_times_three)
    other = copy.deepcopy(graph)
    assert not other.training
    assert torch.equal(other(X), graph(X))


def _times_three(module: nn.Module, args: Any, result: Any) -> Any:
    return 3 * result


def test_an_unpickled_graph_asks_for_what_the_graph_asked_for() -> None:
    other = unpickled(trace(tree(), x_input()))
    assert other.inputs["x"].shape_wanted == (None, 4)
    with pytest.raises(ValueError, match=r"'x' is a tensor of shape \(any, 4\)"):
        other(torch.zeros(3, 5))


def test_clones_take_the_inputs_of_the_user() -> None:
    x = x_input()
    graph = trace(tree(), x)
    assert clone(graph).inputs["x"] is x


def test_a_graph_and_its_copies_are_freed() -> None:
    model = tree()
    graph = trace(model, x_input())
    graph(X)
    kept = [weakref.ref(graph), weakref.ref(model), weakref.ref(model["up"].weight)]
    copies = [copy.deepcopy(graph), clone(graph), rewire(graph, unchanged)]
    del graph, model, copies
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3


# Replacing


def test_layers_are_replaced_on_the_way() -> None:
    model = tree()
    graph = trace(model, x_input())
    new = sl.Linear(4, 4)
    for other in (clone(graph, replace={model["up"]: new}), clone(model, replace={model["up"]: new})):
        assert other.get_submodule("up") is new
        assert torch.equal(other(X), trace(tree_with(model, new), x_input())(X))
    assert graph.get_submodule("up") is model["up"]


def tree_with(model: Any, up: nn.Module) -> Any:
    copied = copy.deepcopy(model)
    copied["up"] = up
    return copied


def test_a_layer_at_several_places_is_replaced_once() -> None:
    leaf = sl.Linear(4, 4)
    model = sl.Chain(one=leaf, then=sl.Chain(two=leaf))
    asked: list[nn.Module] = []

    def replace(layer: nn.Module) -> nn.Module | None:
        asked.append(layer)
        return sl.Linear(4, 4)

    other = clone(trace(model, x_input()), replace=replace)
    assert asked == [leaf]
    assert other.get_submodule("one") is other.get_submodule("then.two")
    tree_copy = clone(model, replace=replace)
    assert tree_copy.get_submodule("one") is tree_copy.get_submodule("then.two")


def test_shapes_are_found_anew_where_a_layer_was_replaced() -> None:
    model = sl.Chain(up=sl.Linear(4, 8), act=sl.ReLU(), down=sl.Linear(8, 2))
    graph = trace(model, x_input())
    other = clone(graph, replace={model[0]: sl.Linear(4, 6), model[2]: sl.Linear(6, 2)})
    assert other["act"].output.example.shape[-1] == 6
    with pytest.raises(RuntimeError, match=r"cannot be multiplied|must have same reduction"):
        clone(graph, replace={model[0]: sl.Linear(4, 6)})


def test_the_layers_inside_of_edits_are_asked_about_too() -> None:
    graph = trace(tree(), x_input())
    added = sl.Linear(4, 4)
    select(graph, "up").wrap(lambda layer: sl.Sum(layer, added))
    new = sl.Linear(4, 4)
    assert new in clone(graph, replace={added: new}).modules()


@pytest.mark.parametrize("kind", ["graph", "tree"])
def test_what_is_no_layer_of_the_model_cannot_be_replaced(kind: str) -> None:
    model = tree()
    given = trace(model, x_input()) if kind == "graph" else model
    with pytest.raises(ValueError, match="another Linear: Linear"):
        clone(given, replace={sl.Linear(4, 4): sl.ReLU()})
    with pytest.raises(ValueError, match="another Residual"):
        clone(given, replace={model["inner"]: sl.ReLU()})
