"""A graph as a module of torch.fx: the same calls, readable, at the same paths, called like the graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from suture import layers as sl
from suture.graph import Graph, Input, trace
from suture.layers.context import Read
from tests.models.decoders import VOCABULARY, decoder

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def small_tree() -> sl.Chain:
    return sl.Chain(
        up=sl.Linear(4, 8),
        blocks=sl.Stack(sl.Linear(8, 8), sl.Linear(8, 8)),
        down=sl.Linear(8, 4),
        shift=sl.Sum(sl.Identity(), sl.UseContext("side", "shift", default=0.5)),
    )


def small_graph() -> Graph:
    return trace(small_tree(), Input("x", shape=(None, 4)))


def test_its_code_reads_as_the_graph_does() -> None:
    code = small_graph().to_fx().code
    assert [line.strip().split(";")[0] for line in code.strip().splitlines()] == [
        "def forward(self, x, shift = 0.5):",
        "up = self.up(x)",
        'blocks_0 = getattr(self.blocks, "0")(up)',
        'blocks_1 = getattr(self.blocks, "1")(blocks_0)',
        "down = self.down(blocks_1)",
        "Identity = self.shift.Identity(down)",
        "UseContext = self.shift.UseContext(down, value = shift)",
        "add = Identity + UseContext",
        "return add",
    ]


def test_it_shares_the_layers_and_keeps_the_keys() -> None:
    graph = small_graph()
    module = graph.to_fx()
    module.graph.lint()
    assert module.get_submodule("blocks.0") is graph.get_submodule("blocks.0")
    assert {key: id(tensor) for key, tensor in module.state_dict(keep_vars=True).items()} == {
        key: id(tensor) for key, tensor in graph.state_dict(keep_vars=True).items()
    }


def test_optional_inputs_are_parameters_with_their_defaults() -> None:
    graph = small_graph()
    module = graph.to_fx()
    assert torch.equal(module(X), graph(X))
    assert torch.equal(module(X, shift=2.0), graph(X, shift=2.0))
    assert not torch.equal(module(X, 2.0), module(X))


def test_a_default_that_is_a_tensor_is_held_and_not_in_the_state() -> None:
    shift = torch.full((4,), 0.25)
    tree = sl.Sum(sl.Linear(4, 4), sl.UseContext("side", "shift", default=shift))
    module = trace(tree, Input("x", shape=(None, 4))).to_fx()
    assert torch.equal(module(X), tree(X))
    assert torch.equal(module(X, shift=torch.ones(4)), tree(X, shift=torch.ones(4)))
    assert set(module.state_dict()) == set(tree.state_dict())


def test_required_inputs_come_first() -> None:
    one, other = Input("one", shape=(None, 4), optional=True), Input("other", shape=(None, 4))
    graph = Graph(inputs={"one": one, "other": other}, outputs=sl.Lambda(first_or_double)(one, other))
    module = graph.to_fx()
    assert torch.equal(module(X), 2 * X)
    assert torch.equal(module(X, -X), -X)


def first_or_double(one: Tensor | None, other: Tensor) -> Tensor:
    return 2 * other if one is None else one


def test_structures_go_in_and_come_out_as_they_are() -> None:
    one, two, three = (Input(name, shape=(None, 4)) for name in ("one", "two", "three"))
    some = Input("some", shape=(None, 4), optional=True)
    outputs = {"sums": (one + two, [two + three]), "size": one.shape[0], "some": sl.Lambda(first_or_double)(some, one)}
    graph = Graph(inputs={"one": one, "rest": (two, {"three": three, "some": some})}, outputs=outputs)
    module = graph.to_fx()
    for rest in ((2 * X, {"three": 3 * X}), (2 * X, {"three": 3 * X, "some": 4 * X})):
        assert_equal(module(X, rest), graph(X, rest))
        assert_equal(module(one=X, rest=rest), graph(X, rest))


def test_a_structure_of_optional_inputs_may_be_left_out() -> None:
    x = Input("x", shape=(None, 4))
    pair = tuple(Input(name, shape=(None, 4), optional=True) for name in ("left", "right"))
    graph = Graph(inputs={"x": x, "pair": pair}, outputs=sl.Lambda(sum_of_those_given)(x, *pair))
    module = graph.to_fx()
    assert torch.equal(module(X), X)
    assert torch.equal(module(X, (X, None)), X + X)


def sum_of_those_given(x: Tensor, *others: Tensor | None) -> Tensor:
    return sum((each for each in others if each is not None), x)


class Pair(NamedTuple):
    left: Any
    right: Any


def test_other_structures_are_made_again() -> None:
    x = Input("x", shape=(None, 4))
    result = Graph(inputs=x, outputs=Pair(x + 1, {"inner": Pair(x * 2, 3)})).to_fx()(X)
    assert isinstance(result, Pair)
    assert isinstance(result.right["inner"], Pair)
    assert_equal(result, Pair(X + 1, {"inner": Pair(X * 2, 3)}))


def test_tensors_and_objects_that_functions_are_called_with_are_there() -> None:
    weight = nn.Parameter(torch.ones(4, 4) / 3)
    x = Input("x", shape=(None, 4))
    y = torch.clamp(x @ weight, min=-torch.inf, max=0.5).clone(memory_format=torch.contiguous_format)
    module = Graph(inputs=x, outputs=y).to_fx()
    assert torch.equal(module(X), (X @ weight).clamp(max=0.5))
    assert module.get_parameter("constant_0") is weight


def test_one_layer_at_several_places_stays_one() -> None:
    shared = sl.Linear(4, 4)
    tree = sl.Chain(sl.Chain(first=shared), sl.ReLU(), last=shared)
    module = trace(tree, Input("x", shape=(None, 4))).to_fx()
    assert torch.equal(module(X), tree(X))
    assert module.get_submodule("Chain.first") is module.get_submodule("last")
    assert len(list(module.parameters())) == 2


def test_gradients_are_the_same() -> None:
    tree = small_tree()
    module = trace(tree, Input("x", shape=(None, 4))).to_fx()
    grads = [torch.autograd.grad(each(X).square().sum(), list(tree.parameters())) for each in (tree, module)]
    assert all(map(torch.equal, *grads))


def test_the_mode_is_that_of_the_graph() -> None:
    tree = sl.Chain(sl.Linear(4, 4), sl.Dropout(0.5)).eval()
    module = trace(tree, Input("x", shape=(None, 4))).to_fx()
    assert not module.training
    assert torch.equal(module(X), tree(X))
    assert tree.training is False


def test_a_pass_of_fx_can_change_it() -> None:
    graph = small_graph()
    module = graph.to_fx()
    for node in module.graph.find_nodes(op="call_module", target="blocks.1"):
        node.replace_all_uses_with(node.all_input_nodes[0])
        module.graph.erase_node(node)
    module.recompile()
    assert not torch.equal(module(X), graph(X))


def test_a_backbone_with_masks_and_positions() -> None:
    backbone = decoder().eval()
    module = trace(backbone, *backbone.graph_inputs()).to_fx()
    ids = torch.arange(10).reshape(2, 5) % VOCABULARY
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, :2] = False
    assert torch.equal(module(ids), backbone(ids))
    assert torch.equal(module(ids, padding_mask=mask), backbone(ids, padding_mask=mask))


class Doubled(nn.Module):
    """A leaf that reads an entry that must be given."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = {"factor": Read("side", "factor")}

    def forward(self, x: Tensor, factor: Tensor) -> Tensor:
        return x * factor


def test_entries_of_a_context_are_given_by_keyword() -> None:
    factor = Input("factor", shape=())
    graph = trace(sl.Chain(Doubled()), Input("x", shape=(None, 4)), context={"side": {"factor": factor}})
    module = graph.to_fx()
    assert isinstance(module, fx.GraphModule)
    assert torch.equal(module(X, factor=torch.tensor(3.0)), graph(X, factor=torch.tensor(3.0)))


def assert_equal(one: Any, other: Any) -> None:
    leaves, structure = pytree.tree_flatten(one)
    others, wanted = pytree.tree_flatten(other)
    assert structure == wanted
    for each, same in zip(leaves, others, strict=True):
        assert torch.equal(each, same) if isinstance(each, Tensor) else each == same
