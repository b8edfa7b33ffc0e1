from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from suture import Graph, Input, clone, rewire, trace
from suture import layers as sl

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def x_input(name: str = "x") -> Input:
    return Input(name, shape=(None, 4))


def shifted(*scopes: str) -> sl.Chain:
    """A tree that adds the entry `shift` of each scope."""
    return sl.Chain(
        sl.Linear(4, 4), *(sl.Sum(sl.Identity(), sl.UseContext(scope, "shift", default=0.0)) for scope in scopes)
    )


# What tracing leaves alone


class Counting(nn.Module):
    """Keeps something of its calls, in each of the ways in which a layer can."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("number", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))
        self.last: Tensor | None = None
        self.inner = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        self.number += 1
        self.mean = self.mean + x.mean(0)
        self.last = x
        return self.inner(x)


@pytest.mark.parametrize("kind", [Counting, lambda: nn.BatchNorm1d(4), lambda: nn.Sequential(nn.BatchNorm1d(4))])
def test_tracing_changes_nothing_of_a_layer(kind: Any) -> None:
    layer = kind()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    state = torch.get_rng_state()
    graph = trace(sl.Chain(layer, sl.Dropout(0.5)), x_input())
    assert torch.equal(torch.get_rng_state(), state)
    after = layer.state_dict()
    assert all(torch.equal(after[key], value) and type(after[key]) is Tensor for key, value in before.items())
    assert getattr(layer, "last", None) is None
    graph(X)
    assert any(not torch.equal(layer.state_dict()[key], value) for key, value in before.items())


def test_a_layer_without_shapes_is_refused() -> None:
    layer = nn.LazyLinear(4)
    with pytest.raises(TypeError, match=r"LazyLinear does not know its shapes before its first call\. Call it once"):
        trace(sl.Chain(layer), x_input())
    layer(X)
    assert torch.equal(trace(sl.Chain(layer), x_input())(X), layer(X))


# Entries of the context


def test_an_entry_is_named_as_the_tree_takes_it() -> None:
    one, two = shifted("one"), shifted("one", "two")
    assert list(trace(one, x_input()).flat_inputs) == ["x", "shift"]
    assert list(trace(one, x_input("shift")).flat_inputs) == ["shift", "one_shift"]
    graph = trace(two, x_input())
    assert list(graph.flat_inputs) == ["x", "one_shift", "two_shift"]
    assert torch.equal(graph(X, two_shift=X), two(X, context={"two": {"shift": X}}))
    for model in (two, graph):
        with pytest.raises(TypeError, match="several scopes, one, two"):
            model(X, shift=X)


class Given(sl.Chain):
    """A tree that gives itself an entry."""

    def init_context(self) -> dict[str, dict[str, Any]]:
        return {"side": {"shift": 3.0}}


@pytest.mark.parametrize("nested", [False, True])
def test_what_a_tree_gives_itself_is_a_default(nested: bool) -> None:
    tree: sl.Chain = Given(sl.Sum(sl.Identity(), sl.UseContext("side", "shift")))
    tree = sl.Chain(tree) if nested else tree
    graph = trace(tree, x_input())
    assert torch.equal(graph(X), X + 3)
    assert torch.equal(graph(X, shift=X), tree(X, shift=X))


def test_entries_that_are_written_and_asked_for_are_outputs() -> None:
    tree = sl.Chain(
        up=sl.Linear(4, 4),
        keep=sl.SetContext("one", "hidden"),
        inner=sl.Chain(act=sl.ReLU(), keep=sl.SetContext("two", "hidden")),
        down=sl.Linear(4, 2),
    )
    hidden = tree[0](X)
    result, written = trace(tree, x_input(), written=(("one", "hidden"),))(X)
    assert torch.equal(result, tree(X))
    assert list(written) == ["hidden"]
    assert torch.equal(written["hidden"], hidden)
    _, written = trace(tree, x_input(), written=(("one", "hidden"), ("two", "hidden")))(X)
    assert torch.equal(written["one_hidden"], hidden)
    assert torch.equal(written["two_hidden"], hidden.relu())


def test_an_entry_that_is_not_written_cannot_be_asked_for() -> None:
    tree = sl.Chain(sl.Linear(4, 4), sl.SetContext("one", "hidden"))
    with pytest.raises(ValueError, match=r"does not write the context entry one.other\. It writes: one.hidden\."):
        trace(tree, x_input(), written=(("one", "other"),))
    with pytest.raises(ValueError, match="It writes: nothing"):
        trace(torch.relu, x_input(), written=(("one", "hidden"),))


# Graphs of graphs


def test_a_graph_of_a_graph_takes_its_context() -> None:
    tree = shifted("one", "two")
    inner = trace(tree, x_input())
    graph = trace(inner, x_input("y"))
    assert list(graph.flat_inputs) == ["y", "one_shift", "two_shift"]
    assert list(graph.state_dict()) == list(tree.state_dict())
    entries = {"two": {"shift": X}}
    assert torch.equal(graph(X, context=entries), tree(X, context=entries))
    with graph.context(entries):
        assert torch.equal(graph(X), tree(X, context=entries))


def test_an_entry_that_a_graph_needs_is_named() -> None:
    tree = sl.Chain(sl.Sum(sl.Identity(), sl.UseContext("side", "shift")))
    inner = trace(tree, x_input(), context={"side": {"shift": x_input("shift")}})
    with pytest.raises(TypeError, match=r"Graph reads side.shift from the context, which has no default"):
        trace(inner, x_input())
    graph = trace(inner, x_input(), context={"side": {"shift": x_input("shift")}})
    assert torch.equal(graph(X, shift=X), 2 * X)


def test_three_levels_of_graphs_are_one_step_list() -> None:
    inner = trace(sl.Chain(a=sl.Linear(4, 4)), x_input())
    middle = trace(sl.Chain(inner=inner, b=sl.Linear(4, 4)), x_input())
    outer = trace(sl.Chain(middle=middle, c=sl.Linear(4, 4)), x_input())
    assert list(outer.layers) == ["middle.inner.a", "middle.b", "c"]
    assert torch.equal(outer(X), outer.layers["c"](middle(X)))


def test_a_graph_in_a_plain_module_in_a_tree_reads_what_a_block_gives() -> None:
    inner = trace(shifted("side"), x_input())
    tree = sl.Chain(nn.Sequential(inner), sl.ReLU())
    with tree.context(side={"shift": X}):
        assert torch.equal(tree(X), inner(X, shift=X).relu())
    with pytest.raises(ValueError, match="only inside a plain module"):
        tree(X, context={"side": {"shift": X}})


@pytest.mark.parametrize("name", ["inputs", "outputs", "source", "contents", "init_cache", "program", "root", "paths"])
def test_a_tree_may_name_its_layers_as_a_graph_its_attributes(name: str) -> None:
    tree = sl.Chain({name: sl.Chain(composite=sl.Chain(linear=sl.Linear(4, 4)))})
    graph = trace(tree, x_input())
    for each in (graph, rewire(graph, unchanged), copy.deepcopy(graph), clone(graph)):
        assert list(each.state_dict()) == list(tree.state_dict())
        assert torch.equal(each(X), tree(X))
    assert graph[name].path == name
    new = sl.ReLU()
    graph.get_submodule(f"{name}.composite").linear = new
    assert torch.equal(graph(X), X.relu())


def unchanged(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


# Layers of every kind


LAYERS: dict[str, Any] = {
    "attention": lambda: sl.SelfAttention(8, num_heads=2, causal=True, rotary=sl.Rotary(4)),
    "checkpoint": lambda: sl.Checkpoint(sl.SelfAttention(8, num_heads=2), sl.Dropout(0.3), sl.Linear(8, 8)),
    "dropout": lambda: sl.Chain(sl.Dropout(0.2), sl.Linear(8, 8), sl.Dropout(0.5)),
    "multi": lambda: sl.MultiLinear(8, 8, inner_dim=16, num_layers=3),
    "gated": lambda: sl.GatedFeedForward(8, 16),
    "parallel": lambda: sl.Parallel(sl.Linear(8, 3), sl.Parallel(sl.Linear(8, 2), sl.Identity())),
    "distribute": lambda: sl.Chain(
        sl.Parallel(sl.Identity(), sl.Linear(8, 8)), sl.Distribute(sl.ReLU(), sl.Linear(8, 4)), sl.GetArg(1)
    ),
    "passthrough": lambda: sl.Chain(
        sl.Passthrough(sl.Linear(8, 4), sl.SetContext("a", "b")), sl.Concatenate(sl.Identity(), sl.UseContext("a", "b"))
    ),
    "recurrent": lambda: sl.Chain(nn.LSTM(8, 8, batch_first=True), sl.GetArg(0)),
    "torch attention": lambda: sl.Chain(
        sl.Parallel(sl.Identity(), sl.Identity(), sl.Identity()), nn.MultiheadAttention(8, 2, batch_first=True)
    ),
    "normalised": lambda: sl.Chain(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_means_the_same_in_a_graph(name: str) -> None:
    tree = LAYERS[name]()
    graph = trace(tree, Input("x", shape=(None, None, 8)))
    assert list(graph.state_dict()) == list(tree.state_dict())
    for shape in ((2, 5, 8), (1, 1, 8), (4, 7, 8)):
        x = torch.randn(shape)
        (wanted, wanted_gradients), (given, gradients) = meaning(tree, x), meaning(graph, x)
        assert len(given) == len(wanted)
        assert all(map(torch.equal, given, wanted))
        assert all(map(torch.equal, gradients, wanted_gradients))


def meaning(model: Any, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The results, and the gradients of the parameters and the input."""
    torch.manual_seed(0)
    x = x.clone().requires_grad_()
    results = [leaf for leaf in pytree.tree_leaves(model(x)) if isinstance(leaf, Tensor)]
    total = torch.stack([result.sum() for result in results]).sum()
    gradients = cast(
        "tuple[Tensor | None, ...]", torch.autograd.grad(total, [x, *model.parameters()], allow_unused=True)
    )
    return results, [gradient for gradient in gradients if gradient is not None]


def test_a_traced_graph_keeps_the_mode_of_its_tree() -> None:
    tree = sl.Chain(sl.Linear(4, 4), sl.Dropout(0.5)).eval()
    graph = trace(tree, x_input())
    assert isinstance(graph, Graph)
    assert not graph.training
    graph.train()
    assert tree[1].training
