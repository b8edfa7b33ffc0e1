"""Graphs as data: what is saved computes the same bits when it is read, and no name in a file is looked up freely."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from suture import layers as sl
from suture import register, rewire
from suture.adapters import LoRA
from suture.graph import Graph, GraphError, Input, trace
from suture.layers.context import Read
from suture.layers.functions import register_function
from suture.models.block import TransformerBlock
from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.safe_file import read_tensors, write_tensors
from tests.models.decoders import VOCABULARY, decoder

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@register("tests.graph.Scaled")
class Scaled(sl.Chain):
    """A composite with a parameter and a buffer of its own."""

    def __init__(self, dim: int) -> None:
        super().__init__(inner=sl.Linear(dim, dim))
        self.scale = nn.Parameter(torch.rand(dim))
        self.shift = nn.Buffer(torch.rand(dim))

    def forward(self, *args: Any, context: Any = None) -> Any:
        return super().forward(*args, context=context) * self.scale + self.shift


@register("tests.graph.Table")
class Table(nn.Module):
    """A layer with a table that is in no state."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table = nn.Buffer(torch.zeros(dim), persistent=False)
        self.reads = {"factor": Read("side", "factor", default=1.0)}

    def forward(self, x: Tensor, factor: float | Tensor) -> tuple[Tensor, Tensor]:
        return x + self.table, x * factor


class Other(sl.Chain):
    """A composite whose class is not registered."""


@register_function("tests.graph.halved")
def halved(x: Tensor, *, by: float = 2.0) -> Tensor:
    return x / by


def small_tree() -> sl.Chain:
    tree = sl.Chain(
        up=sl.Residual(Scaled(4)),
        other=Other(sl.Linear(4, 4), sl.Dropout(0.5)),
        table=sl.Chain(Table(4), sl.Concatenate(sl.GetArg(0), sl.GetArg(1))),
        down=sl.Linear(8, 2),
    )
    nn.init.normal_(tree.layer("table.Table", Table).table)
    return tree


def small_graph() -> Graph:
    return trace(small_tree().eval(), Input("x", shape=(None, 4)))


def again(graph: Graph, folder: Path) -> Graph:
    """The graph as it is read from the file that it was saved to; saved again, it gives the same file."""
    graph.save(folder / "one.safetensors")
    read = Graph.load(folder / "one.safetensors")
    read.save(folder / "other.safetensors")
    assert (folder / "one.safetensors").read_bytes() == (folder / "other.safetensors").read_bytes()
    assert read.code == graph.code
    return read


# What is kept


def test_it_computes_the_same_bits(tmp_path: Path) -> None:
    graph = small_graph()
    read = again(graph, tmp_path)
    assert torch.equal(read(X), graph(X))
    assert torch.equal(read(X, factor=3.0), graph(X, factor=3.0))
    assert torch.equal(read(X, context={"side": {"factor": 3.0}}), graph(X, factor=3.0))
    assert read.context_inputs[0].identity == graph.context_inputs[0].identity
    assert {key: tensor.tolist() for key, tensor in read.state_dict().items()} == {
        key: tensor.tolist() for key, tensor in graph.state_dict().items()
    }


def test_weights_are_its_own(tmp_path: Path) -> None:
    graph = small_graph()
    read = again(graph, tmp_path)
    before = read(X)
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.zero_()
    assert torch.equal(read(X), before)


def test_modes_dtypes_and_what_is_frozen_are_kept(tmp_path: Path) -> None:
    tree = sl.Chain(sl.Linear(4, 4), sl.Dropout(0.5), sl.Linear(4, 4)).to(torch.bfloat16)
    tree.layer("Dropout", sl.Dropout).eval()
    tree.layer("Linear", sl.Linear).requires_grad_(False)
    read = again(trace(tree, Input("x", shape=(None, 4), dtype=torch.bfloat16)), tmp_path)
    assert read.training
    assert not read.get_submodule("Dropout").training
    assert [parameter.requires_grad for parameter in read.parameters()] == [False, False, True, True]
    assert torch.equal(read(X.bfloat16()), tree(X.bfloat16()))


def test_shared_layers_and_tied_weights_stay_so(tmp_path: Path) -> None:
    shared, tied = sl.Linear(4, 4), sl.Linear(4, 4, bias=False)
    tied.weight = shared.weight
    tree = sl.Chain(sl.Chain(first=shared), sl.ReLU(), last=shared, tied=tied)
    read = again(trace(tree, Input("x", shape=(None, 4))), tmp_path)
    assert read.get_submodule("Chain.first") is read.get_submodule("last")
    assert read.get_parameter("tied.weight") is read.get_parameter("last.weight")
    assert torch.equal(read(X), tree(X))
    tensors, _ = read_tensors(tmp_path / "one.safetensors")
    assert sorted(tensors) == ["Chain.first.bias", "Chain.first.weight"]


def test_a_layer_that_is_called_twice_is_called_twice(tmp_path: Path) -> None:
    layer, x = sl.Linear(4, 4), Input("x", shape=(None, 4))
    read = again(Graph(inputs=x, outputs=layer(torch.relu(layer(x)))), tmp_path)
    assert len(read["Linear"].calls) == 2
    assert torch.equal(read(X), layer(torch.relu(layer(X))))


def test_functions_constants_and_structures(tmp_path: Path) -> None:
    one, two = Input("one", shape=(None, 4)), Input("two", shape=(None, 4), optional=True, dtype=torch.float32)
    weight = nn.Parameter(torch.rand(4, 4))
    y = torch.where(one > 0, one @ weight, -torch.inf).clamp(min=-2)[:, None, ::2]
    outputs = {
        "sizes": (one.shape[0], [y.flatten(1)]),
        "view": nn.functional.pad(one.view(one.shape[0], 2, 2), (0, 1)).to(torch.float64).transpose(1, 2),
        "like": one.new_ones((2,)) + torch.full((2,), 0.5),
        "rows": one.T,
    }
    graph = Graph(inputs={"one": one, "rest": [two]}, outputs=outputs)
    read = again(graph, tmp_path)
    for name, wanted in graph(X).items():
        assert str(read(X)[name]) == str(wanted)
    assert list(read.flat_inputs) == ["one", "rest_0"]
    assert repr(read.flat_inputs["one"]) == repr(one)
    assert repr(read.flat_inputs["rest_0"]) == repr(two)
    assert read.get_parameter("constant_0").requires_grad


def test_registered_functions_are_steps(tmp_path: Path) -> None:
    x = Input("x", shape=(None, 4))
    read = again(Graph(inputs=x, outputs=x.call(halved, (x,), {"by": 4.0})), tmp_path)
    assert torch.equal(read(X), X / 4)


@register("tests.graph.Nested")
class Nested(nn.Module):
    """A layer that gives structures in structures."""

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        return x, (2 * x, {"more": [x + 1, ()]})


def test_structures_in_what_a_layer_gives(tmp_path: Path) -> None:
    graph = trace(sl.Chain(sl.Chain(Nested())), Input("x", shape=(None, 4)))
    for model in (graph, again(graph, tmp_path)):
        one, (two, more) = model(X)
        assert torch.equal(one, X)
        assert torch.equal(two, 2 * X)
        assert torch.equal(more["more"][0], X + 1)
        assert more["more"][1] == ()


def test_a_part_that_was_cut_out(tmp_path: Path) -> None:
    tree = small_tree().eval()
    whole = trace(tree, Input("x", shape=(None, 4)))
    part = Graph(inputs=whole["up"].output, outputs=whole["table.Table"].output, source=tree)
    read = again(part, tmp_path)
    assert all(map(torch.equal, read(X), part(X)))


def test_the_parameters_of_a_composite_keep_their_keys(tmp_path: Path) -> None:
    read = again(small_graph(), tmp_path)
    assert {"up.Scaled.scale", "up.Scaled.shift", "up.Scaled.inner.weight"} <= set(read.state_dict())


def test_what_was_read_is_rewired_by_the_classes_of_its_composites(tmp_path: Path) -> None:
    seen: list[str] = []

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(type(layer).__name__)
        result = layer(*args, **kwargs)
        return 2 * result if isinstance(layer, Scaled) else result

    graph = small_graph()
    rewired = rewire(graph, call)
    names, seen[:] = list(seen), []
    read = rewire(again(graph, tmp_path), call)
    assert seen == names
    assert torch.equal(read(X), rewired(X))
    assert torch.equal(again(read, tmp_path)(X), rewired(X))


def test_a_composite_that_was_read_stands_for_its_class(tmp_path: Path) -> None:
    read = again(small_graph(), tmp_path)
    scope = read["up.Scaled"].layer
    assert isinstance(scope, Scaled)
    assert list(scope.children()) == []
    with pytest.raises(TypeError, match=r"Scaled of a graph that was read.*class alone"):
        scope(X)


def test_edits_of_the_graph_are_kept_and_can_be_made_again(tmp_path: Path) -> None:
    graph = small_graph()
    bare = graph(X)
    lora = LoRA.on(graph, "down", rank=2)
    for parameter in lora.parameters():
        nn.init.normal_(parameter)
    read = again(graph, tmp_path)
    assert torch.equal(read(X), graph(X))
    assert not torch.equal(read(X), bare)
    assert list(read.state_dict()) == list(graph.state_dict())


def test_a_backbone_with_its_entries_and_cache(tmp_path: Path) -> None:
    backbone = decoder(blocks=2).eval()
    read = again(trace(backbone, *backbone.graph_inputs()), tmp_path)
    ids = torch.arange(10).reshape(2, 5) * 7 % VOCABULARY
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, :2] = False
    assert torch.equal(read(ids), backbone(ids))
    assert torch.equal(read(ids, padding_mask=mask), backbone(ids, padding_mask=mask))
    assert read.init_cache is not None
    caches = read.init_cache(2, 8), backbone.init_cache(2, 8)
    for new in (ids, ids[:, :1]):
        assert torch.equal(read(new, cache=caches[0]), backbone(new, cache=caches[1]))


def test_blocks_of_a_model_that_was_read_are_blocks(tmp_path: Path) -> None:
    block = TransformerBlock(
        attention=sl.Residual(norm=sl.RMSNorm(4), heads=sl.SelfAttention(4, causal=True)),
        feedforward=sl.Residual(norm=sl.RMSNorm(4), gated=sl.GatedFeedForward(4, 8)),
    )
    read = again(trace(sl.Chain(block=block), Input("x", shape=(None, None, 4))), tmp_path)
    assert isinstance(read["block"].layer, TransformerBlock)
    assert torch.equal(read(X[None]), block(X[None]))


# What is refused


def refusal(layer: nn.Module | Callable[[Any], Any], folder: Path) -> str:
    graph = trace(layer, Input("x", shape=(None, 4)))
    with pytest.raises(GraphError) as caught:
        graph.save(folder / "graph.safetensors")
    assert not list(folder.iterdir())
    return str(caught.value)


class Unknown(nn.Module):
    """A layer whose class is not registered."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Pair(NamedTuple):
    left: Any
    right: Any


def test_what_has_no_name_is_refused_by_its_path(tmp_path: Path) -> None:
    assert "at inner.Unknown, Unknown is not registered" in refusal(sl.Chain(inner=sl.Chain(Unknown())), tmp_path)
    assert "sl.Linear, the same layer, does" in refusal(sl.Chain(nn.Linear(4, 4)), tmp_path)
    assert "hold no code" in refusal(sl.Chain(sl.Lambda(torch.relu)), tmp_path)


def test_functions_that_are_not_registered_are_refused(tmp_path: Path) -> None:
    def mine(x: Any) -> Any:
        return x

    def calling(x: Any) -> Any:
        return x.call(mine, (x,), {})

    message = refusal(calling, tmp_path)
    assert "the function 'mine' has no name" in message
    assert "@suture.register_function" in message


def test_structures_that_are_not_plain_are_refused(tmp_path: Path) -> None:
    def paired(x: Any) -> Any:
        return Pair(x, x)

    assert "the outputs has a Pair" in refusal(paired, tmp_path)


def test_a_layer_of_another_class_than_it_was_made_is_refused(tmp_path: Path) -> None:
    layer = parametrizations.weight_norm(sl.Linear(4, 4))
    assert "was made as a Linear, and is now a ParametrizedLinear" in refusal(sl.Chain(layer), tmp_path)


# Files that are not what they should be


def changed(graph: Graph, folder: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> Path:
    """A file of a graph with other content."""
    path = folder / "graph.safetensors"
    graph.save(path)
    tensors, metadata = read_tensors(path)
    structure = json.loads(metadata["suture.graph"])
    change(structure, tensors)
    write_tensors(path, tensors, {"suture.graph": json.dumps(structure)})
    return path


def plain_graph() -> Graph:
    return trace(sl.Chain(up=sl.Linear(4, 4), act=sl.ReLU()), Input("x", shape=(None, 4)))


def calls(structure: dict[str, Any]) -> list[dict[str, Any]]:
    return structure["items"][0]["items"]


def set_version(structure: dict[str, Any], _: dict[str, Tensor]) -> None:
    structure["version"] = 99


def name_a_function(name: str, *args: Any) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    def change(structure: dict[str, Any], _: dict[str, Tensor]) -> None:
        call = calls(structure)[1]
        calls(structure)[1] = {"function": name, "args": [call["args"][0], *args], "gives": call["gives"]}

    return change


def name_a_class(structure: dict[str, Any], _: dict[str, Tensor]) -> None:
    structure["layers"]["act"]["class"] = "subprocess.Popen"


def name_a_composite(structure: dict[str, Any], _: dict[str, Tensor]) -> None:
    structure["composites"][0] |= {"class": "tests.Gone"}


def take_a_tensor(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    del tensors["up.weight"]


def bring_a_tensor(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["more"] = torch.zeros(1)


def cut_a_tensor(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["up.weight"] = tensors["up.weight"][:2].clone()


def leave_out(structure: dict[str, Any], _: dict[str, Tensor]) -> None:
    del structure["outputs"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_version, "version 99, where 1 can be read"),
        (name_a_function("os.system"), "calls the function 'os.system', which is not known"),
        (name_a_function("torch.load"), "calls the function 'torch.load'"),
        (name_a_function("operator.attrgetter"), "calls the function 'operator.attrgetter'"),
        (name_a_function("torch.Tensor.__reduce_ex__", 2), "calls the function"),
        (name_a_function("getattr", "__class__"), "the attribute .*__class__"),
        (name_a_function("getattr", "numpy"), "the attribute .*numpy"),
        (name_a_class, "The layer at 'act' cannot be made: No class is registered as 'subprocess.Popen'"),
        (name_a_composite, "No class is registered as 'tests.Gone'"),
        (take_a_tensor, "no tensor 'up.weight'"),
        (bring_a_tensor, "has the tensor 'more', for which the graph has no place"),
        (cut_a_tensor, r"'up.weight' has the shape \(2, 4\) in the file, and \(4, 4\)"),
        (leave_out, "cannot be read as a graph: 'outputs'"),
    ],
)
def test_files_that_cannot_be_read(change: Any, message: str, tmp_path: Path) -> None:
    path = changed(plain_graph(), tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        Graph.load(path)


def test_files_that_are_no_graphs(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        Graph.load(tmp_path / "nothing.safetensors")
    write_tensors(tmp_path / "tensors.safetensors", {"x": X}, {})
    with pytest.raises(CheckpointError, match=r"holds tensors and no graph"):
        Graph.load(tmp_path / "tensors.safetensors")
    plain_graph().save(tmp_path / "graph.safetensors")
    whole = (tmp_path / "graph.safetensors").read_bytes()
    (tmp_path / "graph.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cut short"):
        Graph.load(tmp_path / "graph.safetensors")
