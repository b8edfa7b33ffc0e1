from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from suture.weights.checkpoint import Checkpoint, CheckpointError, StoredTensor
from suture.weights.loading import load, without_values
from suture.weights.names import NameTable, Rule

TABLE = NameTable(
    (
        Rule("embed", "body.embedding"),
        Rule("layers.#.proj", "body.layers.#", torch.t),
        Rule("layers.#.count", "body.counters.#"),
        Rule("lm_head", "head"),
    ),
    ignored=("inv_freq",),
)


@dataclass(frozen=True)
class InMemory(StoredTensor):
    values: torch.Tensor

    def copy_to(self, destination: torch.Tensor) -> None:
        destination.copy_(self.values.view(destination.shape))


def checkpoint(**tensors: torch.Tensor) -> Checkpoint:
    stored = {
        name: InMemory(name, tuple(values.shape), "F32", Path("file"), values)
        for name, values in ((name.replace("__", "."), values) for name, values in tensors.items())
    }
    return Checkpoint(Path("some/model"), "transformers", "llama", {}, stored)


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 3, bias=False), nn.Linear(4, 3, bias=False)])


def make(tied: bool = False) -> dict[str, nn.Module]:
    with without_values():
        body, head = Body(), nn.Linear(4, 5, bias=False)
    if tied:
        head.weight = body.embedding.weight
    return {"body": body, "head": head}


def whole() -> dict[str, torch.Tensor]:
    return {
        "embed__weight": torch.randn(5, 4),
        "layers__0__proj__weight": torch.randn(4, 3),
        "layers__1__proj__weight": torch.randn(4, 3),
        "lm_head__weight": torch.randn(5, 4),
    }


def state(modules: dict[str, nn.Module]) -> dict[str, torch.Tensor]:
    return {f"{name}.{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}


def test_every_parameter_gets_its_tensor_through_its_layout() -> None:
    modules, tensors = make(), whole()

    load(checkpoint(**tensors), TABLE, modules)

    loaded = state(modules)
    assert torch.equal(loaded["body.embedding.weight"], tensors["embed__weight"])
    assert torch.equal(loaded["body.layers.1.weight"], tensors["layers__1__proj__weight"].t())
    assert torch.equal(loaded["head.weight"], tensors["lm_head__weight"])


def test_parameters_have_the_dtype_that_was_asked_for_and_take_gradients() -> None:
    modules = make()

    load(checkpoint(**whole()), TABLE, modules, dtype=torch.bfloat16)

    assert {value.dtype for value in state(modules).values()} == {torch.bfloat16}
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in modules["body"].parameters())


def test_a_frozen_parameter_stays_frozen() -> None:
    modules = make()
    modules["head"].requires_grad_(False)

    load(checkpoint(**whole()), TABLE, modules)

    assert not any(parameter.requires_grad for parameter in modules["head"].parameters())


def test_buffers_are_loaded_and_whole_numbers_stay_whole() -> None:
    class Counter(nn.Module):
        steps: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(2, dtype=torch.long))

    class Counters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.counters = nn.ModuleList([Counter()])

    with without_values():
        body = Counters()

    load(checkpoint(layers__0__count__steps=torch.tensor([3, 4])), TABLE, {"body": body}, dtype=torch.float16)

    assert body.state_dict()["counters.0.steps"].tolist() == [3, 4]


def test_tied_parameters_stay_one_tensor() -> None:
    modules, tensors = make(tied=True), whole()
    del tensors["lm_head__weight"]

    load(checkpoint(**tensors), TABLE, modules)

    body, head = modules["body"], modules["head"]
    assert isinstance(body, Body)
    assert head.weight is body.embedding.weight


def test_tied_parameters_may_be_stored_twice_when_they_are_equal() -> None:
    tensors = whole()
    tensors["lm_head__weight"] = tensors["embed__weight"].clone()

    load(checkpoint(**tensors), TABLE, make(tied=True))


def test_tied_parameters_that_differ_in_the_checkpoint_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"embed.weight and lm_head.weight are one tensor, but they differ"):
        load(checkpoint(**whole()), TABLE, make(tied=True))


def test_what_is_missing_left_over_or_misshapen_is_one_error_and_nothing_is_written() -> None:
    modules, tensors = make(), whole()
    del tensors["layers__0__proj__weight"], tensors["layers__1__proj__weight"]
    tensors |= {
        "lm_head__weight": torch.ones(5, 3),
        "extra__weight": torch.ones(1),
        "layers__7__proj__weight": torch.ones(1),
    }

    with pytest.raises(CheckpointError) as raised:
        load(checkpoint(**tensors), TABLE, modules)

    message = str(raised.value)
    assert str(Path("some/model")) in message
    assert "Missing: layers.{0-1}.proj.weight." in message
    assert "Left over: extra.weight, layers.7.proj.weight." in message
    assert "Of another shape: lm_head.weight is [5, 3] where [5, 4] is expected." in message
    assert all(value.is_meta for value in state(modules).values())


def test_names_that_are_known_to_hold_nothing_are_passed_over() -> None:
    load(checkpoint(**whole(), inv_freq=torch.ones(2)), TABLE, make())


def test_layers_without_values_draw_no_random_numbers() -> None:
    before = torch.get_rng_state()

    with without_values():
        layer = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.Conv1d(4, 4, 1))

    assert all(parameter.is_meta for parameter in layer.parameters())
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_without_values_do_not_load_the_compiler() -> None:
    program = """
import sys
from torch import nn
from suture.weights.loading import without_values
with without_values():
    nn.Embedding(3, 4), nn.Linear(4, 4)
print("torch._dynamo" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("kind", ["I8", "U8", "I32", "BOOL", "C64"])
def test_weights_that_are_no_real_numbers_are_refused(kind: str) -> None:
    tensors = checkpoint(**whole())
    packed = {
        name: replace(stored, kind=kind) if name == "lm_head.weight" else stored
        for name, stored in tensors.tensors.items()
    }
    with pytest.raises(CheckpointError, match=f"Of a type that holds no weights as they are: lm_head.weight is {kind}"):
        load(replace(tensors, tensors=packed), TABLE, make())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_layers_each_get_their_part_in_storage_of_their_own(dtype: torch.dtype) -> None:
    with without_values():
        modules: dict[str, nn.Module] = {"query": nn.Linear(4, 6), "key": nn.Linear(4, 2)}
    table = NameTable((Rule("qkv", ("query", "key"), torch.t),))
    weight, bias = torch.randn(4, 8), torch.randn(8)

    load(checkpoint(qkv__weight=weight, qkv__bias=bias), table, modules, dtype)

    loaded = state(modules)
    assert torch.equal(loaded["query.weight"], weight.t()[:6].to(dtype))
    assert torch.equal(loaded["key.weight"], weight.t()[6:].to(dtype))
    assert torch.equal(loaded["key.bias"], bias[6:].to(dtype))
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in loaded.values())
    assert all(tensor.is_contiguous() for tensor in loaded.values())


def test_a_fused_tensor_that_is_missing_or_misshapen_is_named_once() -> None:
    with without_values():
        modules: dict[str, nn.Module] = {"query": nn.Linear(4, 6), "key": nn.Linear(4, 2)}
    table = NameTable((Rule("qkv", ("query", "key"), torch.t),))

    with pytest.raises(CheckpointError, match=r"Missing: qkv.bias\. .*qkv.weight is \[4, 9\] where \[4, 8\] is"):
        load(checkpoint(qkv__weight=torch.randn(4, 9)), table, modules)


def test_what_a_checkpoint_adds_is_taken_off_before_values_are_rounded() -> None:
    with without_values():
        modules: dict[str, nn.Module] = {"norm": nn.RMSNorm(4)}
    weight = 1e-3 * torch.randn(4)

    load(checkpoint(norm__weight=weight + 1), NameTable((Rule("norm", "norm", added=1.0),)), modules, torch.bfloat16)

    torch.testing.assert_close(state(modules)["norm.weight"], weight.bfloat16(), rtol=0.01, atol=1e-6)
