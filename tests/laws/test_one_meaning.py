"""A model means one thing: the tree, its graph, and what is emitted of the graph compute the same."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import suture
from suture import layers as sl
from suture.graph import Graph, GraphError, Input, trace
from suture.layers.context import Context
from suture.layers.recording import EditError
from tests.laws import trees
from tests.laws.edits import plain_edit
from tests.laws.snapshots import X, bits, entries_for
from tests.laws.trees import WIDTH, Draw, tree

for _kind in (trees.Mix, trees.Shift, trees.Plain, trees.Drop):
    suture.register(_kind)

EXAMPLES = settings(max_examples=40, deadline=None)


@given(data=st.data())
@EXAMPLES
def test_a_tree_its_graph_and_the_emitted_module_compute_the_same_bits(data: st.DataObject) -> None:
    model = edited_tree(data.draw)
    graph = graph_of(model)
    module = graph.to_fx()
    module.graph.lint()
    for given_too in (False, True):
        context = entries_for(model) if given_too else {}
        named = by_name(graph, context)
        wanted = meaning(lambda x, context=context: model(x, context=context), model)
        assert meaning(lambda x, context=context: graph(x, context=context), graph) == wanted
        assert meaning(lambda x, named=named: graph(x, **named), graph) == wanted
        assert meaning(lambda x, named=named: module(x, **named), module) == wanted


@given(data=st.data())
@EXAMPLES
def test_a_graph_has_the_keys_of_what_it_uses_of_its_tree(data: st.DataObject) -> None:
    model = tree(data.draw)
    graph = graph_of(model)
    tensors = dict((*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)))
    owned = dict((*graph.named_parameters(remove_duplicate=False), *graph.named_buffers(remove_duplicate=False)))
    assert all(tensor is tensors[key] for key, tensor in owned.items() if not key.startswith("constant_"))
    assert set(graph.to_fx().state_dict()) == set(graph.state_dict())


@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_a_compiled_graph_computes_the_same(data: st.DataObject) -> None:
    model = tree(data.draw).eval()
    graph = graph_of(model)
    with torch.no_grad():
        wanted = model(X)
        # What the compiler makes of it, but for the last step, which is a compiler of another language.
        torch.compiler.reset()
        torch.testing.assert_close(graph.compile(backend="aot_eager")(X), wanted)


@given(data=st.data())
@EXAMPLES
def test_a_function_its_graph_and_the_emitted_module_compute_the_same_bits(data: st.DataObject) -> None:
    function = a_function(data.draw)
    one, other = Input("one", shape=(None, WIDTH)), Input("other", shape=(None, WIDTH), optional=True)
    graph = Graph(inputs={"one": one, "other": other}, outputs=function(one, 2 * one))
    module = graph.to_fx()

    def by_hand(x: Tensor) -> Any:
        return function(x, 2 * x)

    wanted = meaning(by_hand, graph)
    assert meaning(graph, graph) == wanted
    assert meaning(module, module) == wanted


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("told")
def test_a_graph_that_was_saved_computes_the_same_bits(data: st.DataObject) -> None:
    model = edited_tree(data.draw)
    graph = graph_of(model)
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder, "graph.safetensors"), Path(folder, "other.safetensors")
        graph.save(path)
        read = Graph.load(path)
        read.save(other)
        assert path.read_bytes() == other.read_bytes()
    context = entries_for(model)
    assert meaning(lambda x: read(x, context=context), read) == meaning(lambda x: graph(x, context=context), graph)
    assert list(read.state_dict()) == list(graph.state_dict())
    assert read.code == graph.code


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves that have a description."""
    described = (trees.Mix, trees.Shift, trees.Plain, trees.Drop, sl.Identity, lambda: sl.GetArg(0))
    monkeypatch.setattr(trees, "LEAVES", (*described, lambda: sl.SetContext("side", "given")))


# What is compared


def edited_tree(draw: Draw) -> sl.Composite:
    model = tree(draw)
    for _ in range(draw(st.integers(0, 2))):
        with contextlib.suppress(EditError):
            plain_edit(model, draw)
    return model


def graph_of(model: sl.Composite) -> Graph:
    """The graph of a tree that can be called with one tensor and gives something that depends on it."""
    try:
        with torch.no_grad():
            model(X)
    except Exception:
        assume(False)
    try:
        graph = trace(model, Input("x", shape=(None, WIDTH)))
    except GraphError:
        # Some trees give nothing, or nothing that hangs from what they were given.
        assume(False)
        raise
    called = sum(isinstance(call.target, trees.Drop) for call in graph.calls)
    if called != sum(isinstance(place.layer, trees.Drop) for place in model.places()):
        # A graph does not call what nothing hangs from, and then others draw other random numbers.
        model.eval()
        graph.eval()
    return graph


def by_name(graph: Graph, context: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Entries of a context as the inputs of the graph that they are."""
    entries = Context(context)
    absent = object()
    given = {name: entries.get(read.scope, read.key, absent) for name, read in graph.reads.items()}
    return {name: value for name, value in given.items() if value is not absent}


def meaning(call: Callable[[Tensor], Any], module: nn.Module) -> Any:
    """The bits of the result, and of the gradients of everything that is in it."""
    torch.manual_seed(0)
    x = X.clone().requires_grad_()
    result = call(x)
    differentiable = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
    tensors = [x, *module.parameters()]
    gradients = cast(
        "tuple[Tensor | None, ...]",
        torch.autograd.grad([leaf.sum() for leaf in differentiable], tensors, allow_unused=True),
    )
    by_value = sorted(bits(gradient) for gradient in gradients[1:] if gradient is not None)
    return pytree.tree_map(bits, detached(result)), gradients[0] is not None and bits(gradients[0]), by_value


def detached(result: Any) -> Any:
    return pytree.tree_map_only(Tensor, Tensor.detach, result)


# Random functions of tensors, or of symbolic values


def a_function(draw: Draw) -> Callable[[Any, Any], Any]:
    steps = [draw(st.sampled_from(STEPS)) for _ in range(draw(st.integers(1, 6)))]
    picks = [(draw(st.integers(0, 9)), draw(st.integers(0, 9))) for _ in steps]
    outputs = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    shape_of_result = draw(
        st.sampled_from((tuple, list, lambda each: dict(enumerate(each)), lambda each: {"one": each}))
    )

    def function(one: Any, other: Any) -> Any:
        values = [one, other]
        for step, (first, second) in zip(steps, picks, strict=True):
            values.append(step(values[first % len(values)], values[second % len(values)]))
        # The last one, so that most steps are needed.
        return shape_of_result([values[-1], *(values[number % len(values)] for number in outputs)])

    return function


_LINEAR = sl.Linear(WIDTH, WIDTH)
_WEIGHT = nn.Parameter(torch.ones(WIDTH, WIDTH) / 3)
STEPS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, y: x + y,
    lambda x, y: 1 - x * y,
    lambda x, y: x / (2 + y**2),
    lambda x, y: -x @ _WEIGHT,
    lambda x, y: _LINEAR(x),
    lambda x, y: torch.relu(x),
    lambda x, y: torch.where(x > y, x, 0.0),
    lambda x, y: torch.cat([x[:, :1], y[:, 1:]], dim=-1),
    lambda x, y: torch.stack((x, y)).sum(0),
    lambda x, y: nn.functional.softmax(x, dim=-1),
    lambda x, y: x.view(x.shape[0], 2, -1).transpose(1, 2).flatten(1),
    lambda x, y: x.T.T.contiguous(),
    lambda x, y: x.chunk(2, dim=1)[1].repeat(1, 2),
    lambda x, y: torch.einsum("bi,bi->b", x, y)[:, None] * x,
    lambda x, y: x.new_ones(()) * x.to(torch.float64).float(),
    lambda x, y: x[..., None, :].expand(x.size(0), 3, -1)[:, ::2].mean(1),
)
