"""Compiled graphs and trees: one graph without breaks, never stale, and compiled anew only where structure changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from suture import ControlVector, rewire, select
from suture import layers as sl
from suture.adapters import LoRA
from suture.graph import Graph, Input, trace
from suture.layers.recording import EditError
from suture.models.backbone import Backbone
from tests.models.decoders import VOCABULARY, WIDTH, decoder

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch.compiler.reset()


def small_tree() -> sl.Chain:
    shift = sl.Sum(sl.Identity(), sl.UseContext("side", "shift", default=0.5))
    return sl.Chain(up=sl.Linear(4, 8), act=sl.SiLU(), down=sl.Linear(8, 4), shift=shift)


def graph_of(tree: nn.Module) -> Graph:
    return trace(tree, Input("x", shape=(None, 4)))


def small_decoder() -> Backbone:
    return decoder(blocks=2).eval()


def ids(length: int, rows: int = 2) -> Tensor:
    return torch.arange(rows * length).reshape(rows, length) * 7 % VOCABULARY


def with_random_weights(lora: Any) -> Any:
    """A fresh adapter changes nothing, and would hide that it is not called."""
    for parameter in lora.parameters():
        nn.init.normal_(parameter, std=0.5)
    return lora


# Called like the graph


def test_a_compiled_graph_is_the_graph() -> None:
    tree = small_tree()
    graph, keys = graph_of(tree), set(tree.state_dict())
    counter = CompileCounter()
    assert graph.compile(backend=counter) is graph
    torch.testing.assert_close(graph(X), tree(X))
    assert counter.frame_count == 1
    assert set(graph.state_dict()) == keys


def test_it_takes_contexts_keywords_and_what_may_be_left_out() -> None:
    tree = small_tree()
    graph = graph_of(tree).compile(backend="eager")
    context = {"side": {"shift": torch.full((4,), 2.0)}}
    wanted = tree(X, context=context)
    assert torch.equal(graph(X), tree(X))
    assert torch.equal(graph(x=X), tree(X))
    assert torch.equal(graph(X, context=context), wanted)
    assert torch.equal(graph(X, shift=torch.full((4,), 2.0)), wanted)
    with graph.context(context):
        assert torch.equal(graph(X), wanted)
    graph.set_context("side", context["side"])
    assert torch.equal(graph(X), wanted)
    assert torch.equal(graph(X), tree(X))


def test_what_does_not_fit_is_refused_as_ever() -> None:
    graph = graph_of(small_tree()).compile(backend="eager")
    with pytest.raises(ValueError, match=r"'x' is a tensor of shape \(any, 4\)"):
        graph(torch.zeros(3, 5))
    with pytest.raises(TypeError, match="'x' is required"):
        graph()


def test_structures_come_out_as_they_are() -> None:
    one, other = Input("one", shape=(None, 4)), Input("other", shape=(None, 4))
    graph = Graph(inputs={"pair": (one, other)}, outputs={"sum": one + other, "rest": [one.shape[0], (one * other,)]})
    graph.compile(backend="eager")
    result = graph(pair=(X, X))
    assert list(result) == ["sum", "rest"]
    assert result["rest"][0] == 3
    assert torch.equal(result["rest"][1][0], X * X)


def test_gradients_flow() -> None:
    tree = small_tree()
    graph = graph_of(tree).compile(backend="aot_eager")
    grads = [torch.autograd.grad(each(X).square().sum(), list(tree.parameters())) for each in (tree, graph)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # torch's own, of itself
def test_the_compiler_that_torch_uses_unless_told_otherwise() -> None:
    backbone = small_decoder()
    graph = trace(backbone, *backbone.graph_inputs()).compile()
    with torch.no_grad():
        for length in (3, 6):
            torch.testing.assert_close(graph(ids(length)), backbone(ids(length)), rtol=1e-4, atol=1e-4)


# Ways of compiling: each gives what is called, for a tree or a graph

WAYS: dict[str, Callable[[nn.Module, CompileCounter], nn.Module]] = {
    "graph.compile()": lambda model, counter: as_graph(model).compile(backend=counter),
    "torch.compile(graph)": lambda model, counter: Compiled(as_graph(model), counter),
    "torch.compile(tree)": lambda model, counter: Compiled(model, counter),
    "tree.compile()": lambda model, counter: in_place(model, counter),
    "in a tree": lambda model, counter: Compiled(sl.Chain(inner=as_graph(model)), counter),
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
MAIN_WAYS = pytest.mark.parametrize(
    "way",
    [
        "graph.compile()",
        pytest.param("torch.compile(graph)", marks=pytest.mark.long),
        "torch.compile(tree)",
        pytest.param("tree.compile()", marks=pytest.mark.long),
    ],
)


class Compiled(nn.Module):
    """What torch.compile makes of a model, and the model, which is edited."""

    def __init__(self, model: nn.Module, counter: CompileCounter) -> None:
        super().__init__()
        self.model = model
        self.compiled: Any = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)


def as_graph(model: nn.Module) -> Graph:
    return trace(model, *model.graph_inputs()) if isinstance(model, Backbone) else graph_of(model)


def in_place(model: nn.Module, counter: CompileCounter) -> nn.Module:
    model.compile(backend=counter, fullgraph=True, dynamic=True)
    return model


def edited(model: nn.Module) -> nn.Module:
    return model.model if isinstance(model, Compiled) else model


@EVERY_WAY
def test_a_compiled_model_follows_its_edits(way: str) -> None:
    """Case 44."""
    tree = small_tree()
    bare, keys = tree(X), set(tree.state_dict())
    counter = CompileCounter()
    model = WAYS[way](tree, counter)
    assert torch.equal(model(X), bare)
    for _ in range(3):
        lora = with_random_weights(LoRA.on(edited(model), "up", rank=2))
        adapted = edited(model)(X) if isinstance(model, Compiled) else None
        result = model(X)
        assert not torch.equal(result, bare)
        assert adapted is None or torch.equal(result, adapted)
        assert not [key for key in edited(model).state_dict() if "_orig_mod" in key]
        lora.eject()
        assert torch.equal(model(X), bare)
    assert {key.removeprefix("inner.") for key in edited(model).state_dict()} == keys
    assert counter.frame_count == 2


@EVERY_WAY
def test_contexts_do_not_break_what_is_compiled(way: str) -> None:
    """Case 45."""
    tree = small_tree()
    wanted = [tree(X, context={"side": {"shift": torch.full((4,), value)}}) for value in (1.0, 2.0, 3.0)]
    counter = CompileCounter()
    model = WAYS[way](tree, counter)
    for value, result in zip((1.0, 2.0, 3.0), wanted, strict=True):
        assert torch.equal(model(X, context={"side": {"shift": torch.full((4,), value)}}), result)
    assert counter.frame_count == 1


@EVERY_WAY
def test_a_layer_put_in_by_a_selection_is_called(way: str) -> None:
    tree = small_tree()
    model = WAYS[way](tree, CompileCounter())
    bare = model(X)
    edit = select(edited(model), "act").replace(lambda _: sl.Tanh())
    replaced = model(X)
    assert not torch.equal(replaced, bare)
    other = select(edited(model), "act").insert_after(lambda _: sl.ReLU())
    assert not torch.equal(model(X), replaced)
    other.undo()
    assert torch.equal(model(X), replaced)
    edit.undo()
    assert torch.equal(model(X), bare)


def test_many_structures_of_one_graph_are_compiled() -> None:
    graph = graph_of(small_tree()).compile(backend="eager")
    bare = graph(X)
    for rank in range(1, 13):
        with LoRA.on(graph, "up", rank=rank) as lora:
            assert not torch.equal(with_random_weights_of(graph, lora)(X), bare)
    assert torch.equal(graph(X), bare)


def with_random_weights_of(graph: Graph, lora: Any) -> Graph:
    with_random_weights(lora)
    return graph


@MAIN_WAYS
def test_prompts_of_other_lengths_do_not_recompile(way: str) -> None:
    """Case 45."""
    backbone = small_decoder()
    counter = CompileCounter()
    plain = small_decoder()
    model = WAYS[way](backbone, counter)
    with torch.no_grad():
        for length, rows in ((7, 2), (5, 3), (11, 4)):
            assert torch.equal(model(ids(length, rows)), plain(ids(length, rows)))
    assert counter.frame_count == 1


@MAIN_WAYS
def test_adapters_of_equal_rank_do_not_recompile(way: str) -> None:
    """Case 45."""
    counter = CompileCounter()
    model = WAYS[way](small_decoder(), counter)
    with torch.no_grad():
        bare = model(ids(5))
        for _ in range(3):
            with LoRA.on(edited(model), "query", "value", rank=4) as lora:
                with_random_weights(lora)
                assert not torch.equal(model(ids(5)), bare)
            assert torch.equal(model(ids(5)), bare)
    assert counter.frame_count == 2


@pytest.mark.parametrize("way", ["torch.compile(tree)", pytest.param("tree.compile()", marks=pytest.mark.long)])
def test_steering_of_other_strengths_does_not_recompile(way: str) -> None:
    """Case 45."""
    counter = CompileCounter()
    model = WAYS[way](small_decoder(), counter)
    vector = ControlVector({"blocks.1": torch.linspace(-1, 1, WIDTH)})
    with torch.no_grad():
        results = [model(ids(5))]
        with vector.on(cast("Backbone", edited(model)), scale=0.5) as steering:
            for strength in (0.5, 1.0, 1.5, 2.0, -1.0):
                steering.scale = strength
                results.append(model(ids(5)))
        assert torch.equal(model(ids(5)), results[0])
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise(results))
    assert counter.frame_count == 2


def test_a_graph_that_was_rewired_to_steer_is_compiled_once_for_all_strengths() -> None:
    backbone = small_decoder()
    strength = Strength()

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = layer(*args, **kwargs)
        return strength(result) if layer is backbone["blocks.1"] else result

    counter = CompileCounter()
    graph = rewire(backbone, call).compile(backend=counter)
    with torch.no_grad():
        for value in (0.0, 0.5, 1.0, 2.0):
            strength.value.fill_(value)
            assert torch.equal(graph(ids(5)), backbone(ids(5))) == (value == 0)
    assert counter.frame_count == 1


class Strength(nn.Module):
    """Adds a fixed direction, so strongly as a buffer says."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Buffer(torch.zeros(()))
        self.direction = nn.Buffer(torch.linspace(-1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.value * self.direction


def test_a_composite_of_a_graph_is_no_place_to_steer() -> None:
    graph = as_graph(small_decoder())
    with pytest.raises(EditError, match=r"'blocks.1' is a composite of the tree that a graph was made of.*rewire"):
        ControlVector({"blocks.1": torch.ones(WIDTH)}).on(cast("Any", graph))


def test_masks_and_caches_of_a_compiled_graph() -> None:
    backbone = small_decoder()
    graph = as_graph(backbone).compile(backend="eager")
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, :2] = False
    with torch.no_grad():
        torch.testing.assert_close(graph(ids(6), padding_mask=mask), backbone(ids(6), padding_mask=mask))
        caches = [each.init_cache(2, 10) for each in (graph, backbone)]  # pyright: ignore[reportOptionalCall]
        for new in (ids(6), ids(1), ids(1)):
            one, other = graph(new, cache=caches[0]), backbone(new, cache=caches[1])
            torch.testing.assert_close(one, other)


def test_what_is_captured_of_a_compiled_graph_is_an_output_of_it() -> None:
    backbone = small_decoder()
    graph = as_graph(backbone)
    counter = CompileCounter()
    inner = graph["blocks.1.attention"].output
    seeing = Graph(inputs=graph.inputs, outputs=(graph.outputs, inner), source=backbone).compile(backend=counter)
    with torch.no_grad():
        result, seen = seeing(ids(5))
    assert torch.equal(result, backbone(ids(5)))
    assert seen.shape == (2, 5, WIDTH)
    assert counter.frame_count == 1
