from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import Graph, GraphError, Input, select, trace
from suture import layers as sl
from tests.models.decoders import decoder

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def x_input(name: str = "x", **arguments: Any) -> Input:
    return Input(name, shape=(None, 4), **arguments)


def add(x: Tensor, y: Tensor | None) -> Tensor:
    return x if y is None else x + y


# Making


def test_layers_functions_and_operators_make_a_graph() -> None:
    linear, x = sl.Linear(4, 4), x_input()
    graph = Graph(inputs=x, outputs=torch.relu(linear(x) * 2 + x)[:, 1:].sum(-1))
    assert torch.equal(graph(X), torch.relu(linear(X) * 2 + X)[:, 1:].sum(-1))


def test_a_plain_module_becomes_what_it_computes_or_one_step() -> None:
    linear, x = nn.Linear(4, 4), x_input()
    graph = Graph(inputs=x, outputs=linear(x))
    assert torch.equal(graph(X), linear(X))
    assert graph.get_parameter("constant_0") is linear.weight

    def function(x: Tensor) -> Tensor:
        return linear(x)

    traced = trace(function, x)
    assert torch.equal(traced(X), linear(X))
    assert list(traced.state_dict()) == ["Linear.weight", "Linear.bias"]


def test_inputs_stay_the_objects_of_the_user() -> None:
    x, linear = x_input(), sl.Linear(4, 4)
    one = Graph(inputs={"x": x}, outputs=linear(x))
    two = Graph(inputs={"other": x}, outputs=torch.relu(x))
    assert one.inputs["x"] is x
    assert two.inputs["other"] is x
    assert torch.equal(two(other=X), X.relu())


@pytest.mark.parametrize("number", [0, 1])
def test_a_pass_through_output_is_the_input(number: int) -> None:
    x = x_input()
    graph = Graph(inputs=x, outputs=(x, torch.relu(x)))
    assert torch.equal(graph(X)[number], (X, X.relu())[number])


def test_an_unused_input_is_refused_unless_it_is_optional() -> None:
    x, unused = x_input(), x_input("unused")
    with pytest.raises(GraphError, match="input 'unused' reaches no output"):
        Graph(inputs=(x, unused), outputs=torch.relu(x))
    graph = Graph(inputs=(x, x_input("unused", optional=True)), outputs=torch.relu(x))
    assert torch.equal(graph(X), graph(X, X))


def test_an_input_that_is_not_declared_is_named_with_what_needs_it() -> None:
    x, hidden = x_input(), x_input("hidden")
    with pytest.raises(GraphError, match="needs the input 'hidden', for 'Linear'"):
        Graph(inputs=x, outputs=x + sl.Linear(4, 4)(hidden))


def test_outputs_that_lead_back_to_no_input_are_refused() -> None:
    x = x_input()
    y = torch.relu(x)
    # A cycle would need an output from which its own input is made.
    with pytest.raises(GraphError, match="'x'"):
        Graph(inputs=torch.tanh(y), outputs=y)
    with pytest.raises(GraphError, match="returns symbolic values"):
        Graph(inputs=x, outputs=X)


def test_one_value_as_two_inputs_is_refused() -> None:
    x = x_input()
    with pytest.raises(ValueError, match="One value was given as two inputs"):
        Graph(inputs={"a": x, "b": x}, outputs=torch.relu(x))


# Structures


def nested() -> tuple[Graph, dict[str, Any]]:
    x, keys, values = x_input(), x_input("keys"), x_input("values")
    inputs = {"x": x, "cache": (keys, [values])}
    outputs = {"sum": x + keys, "rest": [values, (keys * 2,)]}
    return Graph(inputs=inputs, outputs=outputs), {"x": X, "cache": (X + 1, [X + 2])}


def test_structures_are_taken_and_given_as_declared() -> None:
    graph, given = nested()
    for outputs in (graph(given), graph(**given), graph(X, (X + 1, [X + 2])), graph([X, (X + 1, [X + 2])])):
        assert torch.equal(outputs["sum"], X + (X + 1))
        assert isinstance(outputs["rest"], list)
        assert isinstance(outputs["rest"][1], tuple)
        assert torch.equal(outputs["rest"][1][0], 2 * (X + 1))


def test_what_is_wrong_is_named_with_its_path() -> None:
    graph, given = nested()
    with pytest.raises(ValueError, match=r"'cache.1.0' is a tensor of shape \(any, 4\).*\(3, 5\)"):
        graph(X, (X, [torch.zeros(3, 5)]))
    with pytest.raises(TypeError, match=r"'cache' is a tuple of 2.*tuple of 1"):
        graph(X, (X,))
    with pytest.raises(TypeError, match="'x' is required and was not given"):
        graph(cache=given["cache"])
    with pytest.raises(TypeError, match=r"no input 'other'\. It takes: x, cache"):
        graph(X, other=1)
    with pytest.raises(TypeError, match="by position and by keyword"):
        graph(X, given["cache"], x=X)
    with pytest.raises(TypeError, match=r"takes 2 inputs: x, cache\. Received 3"):
        graph(X, X, X)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (torch.zeros(3, 4, dtype=torch.float64), TypeError, "float64"),
        (torch.zeros(4), ValueError, r"shape \(4,\)"),
        ("text", TypeError, "str"),
        (None, TypeError, "required"),
    ],
)
def test_rank_dtype_and_shape_are_checked(given: Any, error: type[Exception], message: str) -> None:
    x = x_input(dtype=torch.float32)
    with pytest.raises(error, match=message):
        Graph(inputs=x, outputs=torch.relu(x))(given)


def test_scalars() -> None:
    strength, x = Input("strength", shape=()), x_input()
    graph = Graph(inputs=(x, strength), outputs=x * strength)
    assert torch.equal(graph(X, torch.tensor(2.0)), 2 * X)


# Optional inputs


def test_an_optional_input_may_be_left_out_or_none() -> None:
    x, side = x_input(), x_input("side", optional=True)
    graph = Graph(inputs=(x, side), outputs=sl.Chain(sl.Lambda(add))(x, side))
    assert torch.equal(graph(X), X)
    assert torch.equal(graph(X, None), X)
    assert torch.equal(graph(X, X), 2 * X)


def test_an_optional_input_stays_optional_in_a_graph_of_graphs() -> None:
    x, side = x_input(), x_input("side", optional=True)
    inner = Graph(inputs=(x, side), outputs=sl.Chain(sl.Lambda(add))(x, side))
    y, other = x_input("y"), x_input("other", optional=True)
    outer = Graph(inputs=(y, other), outputs=inner(y, other) * 2)
    assert torch.equal(outer(X), 2 * X)
    assert torch.equal(outer(X, X), 4 * X)


def test_a_default_takes_the_place_of_what_is_left_out() -> None:
    x, scale = x_input(), Input("scale", optional=True, default=3.0)
    graph = Graph(inputs=(x, scale), outputs=x * scale)
    assert torch.equal(graph(X), 3 * X)
    assert torch.equal(graph(X, 2.0), 2 * X)
    with pytest.raises(ValueError, match="say optional=True"):
        Input("scale", default=3.0)


# Layers


def test_a_layer_called_twice_is_one_layer_with_two_calls() -> None:
    linear, x = sl.Linear(4, 4), x_input()
    graph = Graph(inputs=x, outputs=linear(linear(x)))
    assert list(graph.state_dict()) == ["Linear.weight", "Linear.bias"]
    assert len(graph["Linear"].calls) == 2
    with pytest.raises(ValueError, match=r"called 2 times.*calls\[0\].output"):
        _ = graph["Linear"].output
    first = Graph(inputs=x, outputs=graph["Linear"].calls[0].output)
    assert torch.equal(first(X), linear(X))


def test_a_part_is_cut_out_and_shares_weights() -> None:
    tree: Any = sl.Stack(*(sl.Residual(sl.RMSNorm(4), sl.Linear(4, 4)) for _ in range(4)))
    graph = trace(tree, x_input())
    part = Graph(inputs=graph["0"].output, outputs=graph["2"].output, source=tree)
    assert torch.equal(part(X), tree[2](tree[1](X)))
    assert list(part.state_dict()) == [key for key in tree.state_dict() if key[0] in "12"]
    assert part.get_parameter("1.Linear.weight") is tree.get_parameter("1.Linear.weight")


def test_a_part_may_begin_inside_a_composite() -> None:
    tree: Any = sl.Chain(one=sl.Chain(a=sl.Linear(4, 4), b=sl.Linear(4, 4)), two=sl.Linear(4, 4))
    graph = trace(tree, x_input())
    part = Graph(inputs=graph["one.a"].output, outputs=graph["two"].output)
    assert torch.equal(part(X), tree[1](tree[0][1](X)))


def test_a_graph_is_a_layer_of_trees_and_graphs() -> None:
    inner_tree = sl.Chain(a=sl.Linear(4, 4))
    inner = trace(inner_tree, x_input())
    tree = sl.Chain(inner=inner, out=sl.Linear(4, 2))
    outer = trace(tree, x_input())
    assert list(tree.state_dict()) == ["inner.a.weight", "inner.a.bias", "out.weight", "out.bias"]
    assert list(outer.state_dict()) == list(tree.state_dict())
    assert torch.equal(outer(X), tree(X))
    assert outer["inner.a"].layer is inner_tree[0]


def test_deep_nesting() -> None:
    tree: Any = sl.Linear(4, 4)
    for _ in range(40):
        tree = sl.Chain(inner=tree)
    graph = trace(tree, x_input())
    assert torch.equal(graph(X), tree(X))
    nested_graph = graph
    for _ in range(5):
        nested_graph = trace(nested_graph, x_input())
    assert torch.equal(nested_graph(X), tree(X))
    assert list(nested_graph.state_dict()) == list(tree.state_dict())


def test_a_path_that_is_not_there_is_named_with_what_is_near() -> None:
    graph = trace(sl.Chain(up=sl.Linear(4, 4)), x_input())
    with pytest.raises(KeyError, match=r"no layer 'uq'\. Near to it: up"):
        _ = graph["uq"]


# Errors while it runs, and while it is made


def test_an_error_says_which_step_it_was() -> None:
    graph = trace(sl.Chain(up=sl.Linear(4, 4), check=sl.Lambda(fails_on_large)), x_input())
    assert graph(X).shape == (3, 4)
    with pytest.raises(RuntimeError, match="too large") as caught:
        graph(X * 1e6)
    (note,) = caught.value.__notes__
    assert note.startswith("In layer 'check' (Lambda), called with a (3, 4) tensor of float32 on cpu")


def fails_on_large(x: Tensor) -> Tensor:
    if type(x) is Tensor and x.abs().max() > 1e3:
        raise RuntimeError("too large")
    return x


def changed_in_place(x: Tensor) -> Tensor:
    return x.add_(1)


def counted(x: Tensor) -> range:
    return range(x.shape[0])


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (bool, "asked for its truth"),
        (list, "iterated"),
        (len, "asked for its length"),
        (float, "made a number"),
        (counted, "used as a whole number"),
        (changed_in_place, "changed in place by 'add_'"),
    ],
)
def test_what_a_graph_cannot_follow_says_what_to_do(use: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        use(x_input())


def test_wrong_shapes_are_found_when_the_graph_is_made() -> None:
    with pytest.raises(RuntimeError, match=r"cannot be multiplied|must have same reduction"):
        sl.Linear(5, 4)(x_input())


# Sizes


def test_sizes_are_steps_and_no_constants() -> None:
    x = Input("x", shape=(None, None, 4))

    def merged(x: Any) -> Any:
        rows, length, width = x.shape
        return x.reshape(rows * length, width) / length

    graph = trace(merged, x)
    for shape in ((2, 3, 4), (5, 1, 4)):
        y = torch.ones(shape)
        assert torch.equal(graph(y), merged(y))


# Edits


def test_an_edit_of_a_graphs_layers_is_seen_by_its_next_call() -> None:
    tree = sl.Chain(up=sl.Linear(4, 4), down=sl.Linear(4, 2))
    graph = trace(tree, x_input())
    before = graph(X)
    edit = select(graph, "up").insert_after(lambda up: sl.Lambda(torch.zeros_like))
    assert torch.equal(graph(X), tree.get_parameter("down.bias").expand(3, 2))
    edit.undo()
    assert torch.equal(graph(X), before)


def test_moving_and_casting_a_graph_moves_what_it_computes_with() -> None:
    x = x_input()
    graph = Graph(inputs=x, outputs=sl.Linear(4, 4)(x) + torch.ones(4)).to(torch.float64)
    assert graph(X.double()).dtype == torch.float64


def test_a_part_of_a_backbone_runs_on_hidden_states_alone() -> None:
    backbone = decoder()
    graph = trace(backbone)
    ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    real = torch.tensor([[False, False, True, True, True], [True] * 5])
    part = Graph(inputs=graph["blocks.0"].output, outputs=graph["blocks.2"].output)
    before = Graph(inputs=graph.inputs["token_ids"], outputs=graph["blocks.0"].output)
    after = Graph(inputs=graph.inputs["token_ids"], outputs=graph["blocks.2"].output)
    with torch.no_grad():
        assert torch.equal(part(before(ids)), after(ids))
        padded: dict[str, Any] = {"padding_mask": real}
        assert torch.equal(part(before(ids, **padded), **padded)[real], after(ids, **padded)[real])


def test_a_part_takes_no_optional_input_of_what_was_cut_off() -> None:
    x, side, hidden = x_input(), x_input("side", optional=True), x_input("hidden")
    # The second argument, and what it is made of, is not needed for the first result.
    first, _ = sl.Distribute(sl.Identity(), sl.Identity())(hidden, sl.Chain(sl.Lambda(add))(x, side))
    part = Graph(inputs=hidden, outputs=first * 2)
    assert list(part.flat_inputs) == ["hidden"]
    assert torch.equal(part(X), 2 * X)
