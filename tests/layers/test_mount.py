from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl
from suture import select
from suture.layers.mount import Mount, caller_in, logical_keys, mount
from suture.layers.recording import EditError
from tests.plain_models import Bottleneck, ImageClassifier

X = torch.ones(2, 4)


class Gated(nn.Module):
    """Takes more than one argument, and tells what it got."""

    kind = "gated"

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls: list[tuple[Any, ...]] = []
        self.strength = 1.0

    def forward(self, hidden: Tensor, gate: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        self.calls.append((gate, scale))
        return self.linear(hidden) * scale * self.strength * (1 if gate is None else gate)


class Caller(nn.Module):
    """Calls its layer by position or by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Gated()
        self.by_keyword = False

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        if self.by_keyword:
            return self.layer(hidden=x, gate=gate, scale=2.0)
        return self.layer(x, gate, scale=2.0)


@pytest.fixture(params=["by position", "by keyword"])
def caller(request: pytest.FixtureRequest) -> Caller:
    made = Caller()
    made.by_keyword = request.param == "by keyword"
    return made


def inner(caller: Caller) -> Gated:
    """The layer itself, whatever stands around it."""
    layer = caller.get_submodule("layer.layer_layer")
    assert isinstance(layer, Gated)
    return layer


def keys(model: nn.Module) -> list[str]:
    return list(model.state_dict())


# Coming and going


def test_a_mount_goes_with_the_last_edit() -> None:
    model = ImageClassifier().eval()
    before, modules = keys(model), list(model.modules())
    one = select(model, "fc").wrap(lambda fc: sl.Chain(fc, sl.ReLU()))
    two = select(model, "fc").wrap(lambda fc: sl.Chain(sl.Identity(), fc))
    one.undo()
    assert isinstance(model.fc, Mount)
    two.undo()
    assert keys(model) == before
    assert all(now is then for now, then in zip(model.modules(), modules, strict=True))


def test_an_edit_that_fails_leaves_no_mount() -> None:
    model = ImageClassifier()

    def fail(layer: nn.Module) -> nn.Module:
        if layer is model.layer1[1].conv1:
            raise RuntimeError("no")
        return sl.Identity()

    modules = list(model.modules())
    with pytest.raises(RuntimeError, match="no"):
        select(model, "layer1.*.conv1").replace(fail)
    assert all(now is then for now, then in zip(model.modules(), modules, strict=True))


def test_a_composite_in_a_plain_module_is_a_root_again_when_the_mount_goes() -> None:
    inner = sl.Chain(sl.Linear(4, 4))
    model = nn.Sequential(inner, nn.ReLU())
    edit = select(model, "0").wrap(lambda layer: sl.Residual(layer))
    assert torch.equal(model(X), (X + inner(X)).relu())
    edit.undo()
    assert model[0] is inner
    assert (inner.parent, inner.path) == (None, "")
    edit = select(model, "0.Linear").remove()
    assert torch.equal(model(X), X)
    edit.undo()
    assert len(inner) == 1


def test_a_mount_has_the_mode_of_its_module() -> None:
    model = ImageClassifier().eval()
    select(model, "fc").insert_before(lambda layer: sl.Dropout(0.9))
    assert not any(module.training for module in model.modules())


def test_a_list_that_is_gone_through_is_no_place() -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(4, 4)])
    with pytest.raises(EditError, match="ModuleList, which is not called"):
        select(model, "blocks").remove()
    select(model, "blocks.*").remove()


# Calling


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("part", ["self_attn", "linear1", "linear2", "norm1", "dropout2"])
def test_a_layer_whose_weights_torch_would_compute_with_is_called(part: str) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval()
    x, padded = torch.randn(2, 3, 4), torch.tensor([[False, False, True], [False, False, False]])
    calls: list[Tensor] = []

    def record(x: Tensor) -> Tensor:
        calls.append(x)
        return x

    edit = select(model, part).insert_before(lambda layer: sl.Lambda(record))
    with torch.no_grad():
        once = model(x)
        assert len(calls) == 2
        model(x, src_key_padding_mask=padded)
        assert len(calls) == 4
        edit.undo()
        torch.testing.assert_close(once, model(x))


def test_a_layer_that_torch_never_calls_is_no_place() -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2))
    before = keys(model)
    with pytest.raises(EditError, match=r"'0\.out_proj' is not called: MultiheadAttention reads its weight"):
        select(model, "out_proj").insert_after(sl.ReLU())
    assert keys(model) == before


def test_further_arguments_go_to_the_layer(caller: Caller) -> None:
    gate = torch.full((4,), 0.5)
    before = caller(X, gate)
    seen: list[Tensor] = []

    def look(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    select(caller, "layer").wrap(lambda layer: sl.Chain(sl.Lambda(look), layer, sl.Identity()))
    assert torch.equal(caller(X, gate), before)
    assert len(seen) == 1
    assert inner(caller).calls[-1] == (gate, 2.0)


def test_a_layer_inside_several_composites_gets_them_too(caller: Caller) -> None:
    gate = torch.full((4,), 0.5)
    before = caller(X, gate)
    select(caller, "layer").wrap(lambda layer: sl.Sum(sl.Residual(layer), sl.Identity()))
    select(caller, "layer").wrap(lambda layer: sl.Residual(layer))
    assert torch.allclose(caller(X, gate), before + 3 * X)


def test_a_replacement_is_called_as_the_layer_was(caller: Caller) -> None:
    gate = torch.full((4,), 0.5)
    new = Gated()
    select(caller, "layer").replace(new)
    assert torch.equal(caller(X, gate), new(X, gate, scale=2.0))


def test_a_composite_in_the_place_reads_them_from_the_context(caller: Caller) -> None:
    gate = torch.full((4,), 0.5)
    edit = select(caller, "layer").replace(lambda layer: sl.Chain(sl.UseContext("call", "gate")))
    assert torch.equal(caller(X, gate), gate)
    edit.undo()
    select(caller, "layer").replace(lambda layer: sl.Product(sl.UseContext("call", "scale"), sl.GetArg(0)))
    assert torch.equal(caller(X, gate), 2 * X)


def test_a_removed_layer_is_passed_by(caller: Caller) -> None:
    edit = select(caller, "layer").remove()
    assert torch.equal(caller(X, torch.zeros(4)), X)
    assert caller.layer.kind == "gated"
    edit.undo()
    assert torch.equal(caller(X, torch.zeros(4)), torch.zeros(2, 4))


def test_what_the_module_asks_of_its_layer_is_answered(caller: Caller) -> None:
    select(caller, "layer").wrap(lambda layer: sl.Chain(layer))
    assert caller.layer.kind == "gated"
    assert caller.layer.linear.in_features == 4
    caller.layer.strength = 3.0
    assert inner(caller).strength == 3.0
    with pytest.raises(AttributeError, match="colour"):
        _ = caller.layer.colour


def test_an_error_says_where_in_the_whole_model() -> None:
    model = ImageClassifier()
    select(model, "layer1.1.conv2").insert_after(lambda layer: sl.Linear(3, 3))
    with pytest.raises(RuntimeError) as caught:
        model(torch.zeros(1, 3, 8, 8))
    assert "In layer 'layer1.1.conv2+Linear' (Linear)" in caught.value.__notes__[0]


# Copies


def deep(model: Any) -> Any:
    return copy.deepcopy(model)


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("way", [deep, pickled])
def test_a_copy_of_an_edited_model_is_edited_by_itself(way: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Bottleneck(4)).eval()
    edit = select(model, "0").wrap(lambda layer: sl.Residual(layer))
    copied = way(model)
    assert torch.equal(copied[0](X), model[0](X))
    place, _ = copied[0].place
    assert place is copied
    select(copied, "0").remove()
    assert torch.equal(copied[0](X), 2 * X)
    edit.undo()
    assert isinstance(model[0], nn.Linear)
    assert not isinstance(copied[0], nn.Linear)


def test_a_mount_copied_alone_leaves_its_module_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    select(model, "0").wrap(lambda layer: sl.Residual(layer))
    copied = copy.deepcopy(model[0])
    assert copied.place == (None, "0")
    assert torch.equal(copied(X), model[0](X))


# Finding


def test_a_plain_parent_says_where_a_layer_stands() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    linear = model[0]
    caller_in(model, linear).replace(linear, sl.Identity())
    assert torch.equal(model(X), X)
    with pytest.raises(LookupError, match="not a child of this Sequential, whose children are: 0, 1"):
        caller_in(model, nn.ReLU())
    shared = nn.ReLU()
    with pytest.raises(ValueError, match="stands at 2 places, 0, 1"):
        caller_in(nn.Sequential(shared, shared), shared)


def test_logical_keys_are_those_of_the_bare_model() -> None:
    model = ImageClassifier()
    before = keys(model)
    select(model, "conv1").wrap(lambda layer: sl.Sum(layer, low=sl.Conv2d(3, 8, 1)))
    select(model, "layer1.0").insert_after(lambda block: sl.Conv2d(8, 8, 1))
    logical = logical_keys(model)
    assert list(logical) == keys(model)
    assert set(before) <= set(logical.values())
    assert len(set(logical.values())) == len(logical)
    assert logical["conv1.conv1+Sum.low.weight"] == "conv1+Sum.low.weight"
    assert logical["layer1.0.0.bn1.weight"] == "layer1.0.bn1.weight"


def test_a_layer_whose_name_is_that_of_a_method_has_its_logical_key() -> None:
    caller = Caller()
    before = keys(caller)
    select(caller, "layer").wrap(lambda layer: sl.Sum(layer, low=sl.Linear(4, 4)))
    assert set(before) < set(logical_keys(caller).values())
    assert select(caller, "**").paths == ("layer+Sum", "layer", "layer.linear", "layer+Sum.low")
    assert set(torch.func.functional_call(caller, dict(caller.named_parameters()), (X, X)).shape) == {2, 4}


def test_mounting_twice_gives_one_mount() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    assert mount(model, "0") is mount(model, "0")
