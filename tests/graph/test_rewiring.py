from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from suture import CausalLM, Graph, Input, intercept, replay, rewire, select, trace
from suture import layers as sl
from suture.adapters import LoRA
from suture.layers.frames import call_module
from suture.models import Backbone, TokenEmbedding

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def x_input(name: str = "x") -> Input:
    return Input(name, shape=(None, 4))


def tree() -> Any:
    return sl.Chain(
        up=sl.Linear(4, 4), inner=sl.Residual(norm=sl.RMSNorm(4), mix=nn.Linear(4, 4)), down=sl.Linear(4, 4)
    )


def unchanged(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


class Seeing:
    """A call function that takes down what it is asked about."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(type(layer).__name__)
        return layer(*args, **kwargs)


# What is rewired


def test_a_graph_that_is_rewired_to_what_it_was_is_the_same() -> None:
    model = tree()
    graph, rewired = trace(model, x_input()), rewire(model, unchanged, inputs=x_input())
    assert rewired.code == graph.code
    assert list(rewired.state_dict()) == list(model.state_dict())
    assert all(rewired.get_parameter(name) is parameter for name, parameter in model.named_parameters())


def test_every_level_of_trees_and_graphs_is_seen() -> None:
    inner = trace(sl.Chain(a=sl.Linear(4, 4)), x_input())
    middle = sl.Chain(inner=inner, b=sl.Linear(4, 4))
    model = sl.Chain(middle=trace(middle, x_input()), c=sl.Linear(4, 4))
    rewiring, eager = Seeing(), Seeing()
    rewire(model, rewiring, inputs=x_input())
    with intercept(eager):
        model(X)
    assert rewiring.seen == ["Chain", "Graph", "Chain", "Graph", "Chain", "Linear", "Linear", "Linear"]
    assert eager.seen == rewiring.seen


def test_a_function_of_symbolic_values_is_rewired() -> None:
    linear, plain, weight = sl.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def function(x: Any) -> Any:
        return {"a": torch.relu(plain(linear(x))) * weight, "size": x.shape[0]}

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return -layer(*args, **kwargs)

    graph = trace(function, x_input())
    rewired = rewire(graph, call)
    assert list(rewired.state_dict()) == list(graph.state_dict())
    result = rewired(X)
    assert torch.equal(result["a"], torch.relu(-plain(-linear(X))) * weight)
    assert result["size"] == 3


# What a call function may do


def test_a_layer_may_be_called_twice_not_at_all_or_with_other_arguments() -> None:
    model = tree()
    up, mix, norm = model["up"], model["inner"]["mix"], model["inner"]["norm"]

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if layer is up:
            return layer(layer(*args))
        if layer is norm:
            return args[0]
        return layer(2 * args[0], **kwargs)

    rewired = rewire(model, call, inputs=x_input())
    # The tree and the composite inside are called with twice what they would be.
    inner = 2 * up(up(2 * X))
    wanted = model["down"](2 * (inner + mix(2 * inner)))
    assert torch.equal(rewired(X), wanted)
    with intercept(call):
        assert torch.equal(model(X), wanted)
    assert "inner.norm.weight" not in rewired.state_dict()


def test_a_composite_may_be_called_twice_or_replaced() -> None:
    model = tree()
    inner = model["inner"]

    def twice(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return layer(layer(*args, **kwargs), **kwargs) if layer is inner else layer(*args, **kwargs)

    def replaced(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return args[0].relu() if layer is inner else layer(*args, **kwargs)

    y = model["up"](X)
    assert torch.equal(rewire(model, twice, inputs=x_input())(X), model["down"](inner(inner(y))))
    assert torch.equal(rewire(model, replaced, inputs=x_input())(X), model["down"](y.relu()))


def writing() -> Any:
    """A tree whose second part reads what the first writes."""
    return sl.Chain(
        first=sl.Chain(linear=sl.Linear(4, 4), keep=sl.SetContext("side", "hidden")),
        second=sl.Sum(sl.Identity(), sl.UseContext("side", "hidden")),
    )


def test_what_is_written_inside_is_read_from_the_last_call() -> None:
    model = writing()
    first = model["first"]

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        if layer is first:
            layer(2 * args[0], **kwargs)
        return y

    wanted = first(X) + first(2 * X)
    assert torch.equal(rewire(model, call, inputs=x_input())(X), wanted)
    for each in (model, trace(model, x_input())):
        with intercept(call):
            assert torch.equal(each(X), wanted)


def test_a_value_that_nothing_writes_any_more_is_named() -> None:
    model = writing()

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return args[0] if layer is model["first"] else layer(*args, **kwargs)

    with pytest.raises(LookupError, match=r"made by 'first.linear' is needed later.*without calling it"):
        rewire(model, call, inputs=x_input())


def test_tuples_are_taken_and_given() -> None:
    model = sl.Chain(pair=sl.Parallel(sl.Linear(4, 4), sl.Identity()), sum=sl.Lambda(torch.sub))

    def swapped(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return (y[1], 2 * y[0]) if isinstance(layer, sl.Parallel) else y

    def single(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return y[0] if isinstance(layer, sl.Parallel) else y

    linear: Any = model.get_submodule("pair.Linear")
    assert torch.equal(rewire(model, swapped, inputs=x_input())(X), X - 2 * linear(X))
    with pytest.raises(TypeError, match=r"Parallel at 'pair' gives 2 values in this graph.*call function: 1"):
        rewire(model, single, inputs=x_input())


def test_another_context_is_refused_and_other_reads_are_taken() -> None:
    model = sl.Chain(inner=sl.Sum(sl.Identity(), sl.UseContext("side", "shift", default=0.0)))
    inner = model["inner"]

    def other_context(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return layer(*args, context={"side": {"shift": 5.0}}) if layer is inner else layer(*args, **kwargs)

    def other_entry(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return layer(*args, shift=5.0) if layer is inner else layer(*args, **kwargs)

    def none_passed_on(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return layer(*args, value=5.0) if isinstance(layer, sl.UseContext) else layer(*args)

    graph = trace(model, x_input())
    for call, name in ((other_context, "context"), (other_entry, "shift")):
        for each in (model, graph):
            with pytest.raises(TypeError, match=f"called with {name}=... of its own"), intercept(call):
                each(X)
        with pytest.raises(TypeError, match=f"called with {name}=... of its own"):
            rewire(graph, call)
    assert torch.equal(rewire(graph, none_passed_on)(X), X + 5)


def test_nothing_is_left_after_an_exception() -> None:
    model = tree()

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, sl.RMSNorm):
            raise ZeroDivisionError
        return layer(*args, **kwargs)

    with pytest.raises(ZeroDivisionError):
        rewire(model, call, inputs=x_input())
    assert nn.Module.__call__ is call_module
    assert torch.equal(rewire(model, unchanged, inputs=x_input())(X), model(X))


# New layers and tensors


def adding(kind: type[nn.Module] = nn.Linear) -> Any:
    """A call function that has two new layers after every layer of a kind."""

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return sl.Linear(4, 4)(sl.Linear(4, 4)(y)) if isinstance(layer, kind) else y

    return call


def test_a_new_layer_stands_beside_the_one_it_was_made_for() -> None:
    model = sl.Chain(up=sl.Linear(4, 4), inner=sl.Chain(mix=nn.Linear(4, 4)))
    shared = sl.LayerNorm(4)
    new = sl.Chain(norm=sl.LayerNorm(4), act=sl.ReLU())

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return shared(new(y)) if isinstance(layer, nn.Linear) else y

    rewired = rewire(model, call, inputs=x_input())
    names = [*rewired.layers]
    assert names[:3] == ["up", "up+Chain.norm", "up+Chain.act"]
    assert names[-1] == "inner.mix"
    # One object is one layer, with the name of the place where it was called first.
    assert not any(name.startswith("inner.mix+") for name in names)
    assert list(model.state_dict()) == ["up.weight", "up.bias", "inner.mix.weight", "inner.mix.bias"]


def test_a_second_rewiring_keeps_the_names_of_the_first() -> None:
    first = rewire(tree(), adding(), inputs=x_input())
    second = rewire(first, adding())
    third = rewire(second, adding(sl.RMSNorm))
    for before, after in ((first, second), (second, third)):
        for name, parameter in before.named_parameters():
            assert after.get_parameter(name) is parameter
    assert {"up+Linear", "up+Linear_2", "up+Linear_3", "up+Linear+Linear"} <= set(second.layers)


def test_tensors_of_call_functions_keep_their_names() -> None:
    model, late, early = tree(), nn.Parameter(torch.ones(4)), nn.Parameter(torch.full((4,), 3.0))

    def add_late(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return y + late if layer is model["down"] else y

    def add_early(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return y * early if layer is model["up"] else y

    once = rewire(model, add_late, inputs=x_input())
    twice = rewire(once, add_early)
    assert once.get_parameter("constant_0") is late
    assert twice.get_parameter("constant_0") is late
    assert twice.get_parameter("constant_1") is early
    outputs = replay(once, once.inputs, add_early)
    assert Graph(inputs=once.inputs, outputs=outputs, source=once).get_parameter("constant_0") is late


def test_a_graph_computes_with_its_tensors_as_they_are_now() -> None:
    x, scale = x_input(), torch.full((4,), 1.001)
    graph = Graph(inputs=x, outputs=sl.Linear(4, 4)(x) * scale).to(torch.bfloat16)
    rewired, x_low = rewire(graph, unchanged), X.bfloat16()
    assert rewired(x_low).dtype == torch.bfloat16
    graph.get_buffer("constant_0").mul_(2)
    assert torch.equal(rewired(x_low), graph(x_low))
    with intercept(unchanged):
        assert torch.equal(graph(x_low), rewired(x_low))
    graph.load_state_dict({key: 2 * value for key, value in graph.state_dict().items()}, assign=True)
    assert torch.equal(rewire(graph, unchanged)(x_low), graph(x_low))


def test_new_inputs_and_composites_are_wired_in_two_steps() -> None:
    model, x, shift = tree(), x_input(), x_input("shift")
    new = sl.Chain(sl.Sum(sl.Identity(), sl.UseContext("side", "shift")), sl.ReLU())

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return new(y, context={"side": {"shift": shift}}) if layer is model["up"] else y

    graph = trace(model, x)
    for source in (model, graph):
        wired = Graph(inputs=(x, shift), outputs=replay(graph, x, call), source=source)
        assert list(wired.layers)[:2] == ["up", "up+Chain.Sum.Identity"]
        assert torch.equal(wired(X, X), model["down"](model["inner"]((model["up"](X) + X).relu())))


def test_a_new_layer_takes_on_the_dtype_and_mode_of_its_place() -> None:
    model = tree().to(torch.bfloat16).eval()
    drop, linear = sl.Dropout(0.5), sl.Linear(4, 4)

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return drop(linear(y)) if isinstance(layer, sl.Residual) else y

    rewired, x = rewire(model, call, inputs=Input("x", shape=(None, 4), dtype=torch.bfloat16)), X.bfloat16()
    assert linear.weight.dtype == torch.bfloat16
    assert not drop.training
    assert torch.equal(rewired(x), model["down"](linear(model["inner"](model["up"](x)))))


# Edits and rewiring


def test_a_layer_that_is_set_is_called_from_then_on() -> None:
    graph, new = trace(tree(), x_input()), sl.Chain(sl.ReLU(), sl.Linear(4, 4))
    graph(X)
    graph.up = new
    graph.get_submodule("inner").mix = sl.Identity()
    y = new(X)
    down, norm = graph.layers["down"], graph.layers["inner.norm"]
    assert torch.equal(graph(X), down(y + norm(y)))
    seeing = Seeing()
    assert torch.equal(rewire(graph, seeing)(X), graph(X))
    assert "ReLU" in seeing.seen


def test_what_an_edit_put_in_is_seen_under_its_own_path() -> None:
    model = tree()
    graph = trace(model, x_input())
    with LoRA.on(graph, "up", "mix", rank=2) as adapters:
        for parameter in adapters.parameters():
            nn.init.ones_(parameter)
        adapted, rewiring, eager = graph(X), Seeing(), Seeing()
        rewired = rewire(graph, rewiring)
        with intercept(eager):
            graph(X)
    assert rewiring.seen == eager.seen[1:]
    assert rewiring.seen.count("LoRA") == 2
    assert "Mount" not in rewiring.seen
    assert "up+LoRA" in {path.partition(".")[0] for path in rewired.layers}
    assert set(model.state_dict()) < set(rewired.state_dict())
    # The edit is out again, and the rewired graph is as it was made.
    assert torch.equal(rewired(X), adapted)
    assert torch.equal(graph(X), model(X))


@pytest.mark.parametrize(
    "new", [sl.ReLU, lambda: sl.Chain(sl.ReLU(), sl.Linear(4, 4)), lambda: trace(tree(), x_input())]
)
def test_a_replaced_layer_is_rewired(new: Any) -> None:
    graph = trace(tree(), x_input())
    edit = select(graph, "inner.mix").replace(lambda layer: new())
    edited = graph(X)
    assert torch.equal(rewire(graph, unchanged)(X), edited)
    assert torch.equal(Graph(graph.inputs, replay(graph, graph.inputs), source=graph)(X), edited)
    edit.undo()
    assert not torch.equal(graph(X), edited)


# Generation


def test_generation_goes_on_from_a_cache_after_any_rewiring_that_keeps_shapes() -> None:
    blocks = sl.Stack(*(_block() for _ in range(3)))
    backbone = Backbone(embedding=TokenEmbedding(20, 8), blocks=blocks, norm=sl.RMSNorm(8))
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, std=0.7)
    head = sl.Linear(8, 20)
    vector = torch.linspace(-2, 2, 8)

    def steered(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return y + vector if isinstance(layer, sl.Residual) else y

    def repeated(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return layer(y, **kwargs) if isinstance(layer, sl.Residual) else y

    def skipped(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return args[0] if layer is blocks[1] else layer(*args, **kwargs)

    rows = [[3, 1], [4, 1, 5, 9], [2, 6, 5]]
    for graph in (
        *(rewire(backbone, call) for call in (steered, repeated, skipped)),
        rewire(rewire(backbone, steered), repeated),
    ):
        model = CausalLM(graph, head).eval()
        made = model.generate(rows, max_new_tokens=6, stop_ids=[])
        assert made == [model.generate([row], max_new_tokens=6, stop_ids=[])[0] for row in rows]
        assert made == [_greedy(model, row, 6) for row in rows]


def _block() -> sl.Chain:
    return sl.Chain(
        attention=sl.Residual(sl.RMSNorm(8), sl.SelfAttention(8, num_heads=2, causal=True, rotary=sl.Rotary(4)))
    )


def _greedy(model: CausalLM, row: list[int], new: int) -> list[int]:
    ids = torch.tensor([row])
    with torch.no_grad():
        for _ in range(new):
            logits: Tensor = model(ids)
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=-1)
    return cast("list[int]", ids[0].tolist())
