from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from transformers.pytorch_utils import Conv1D

from suture import layers as sl
from suture.adapters import LoRA
from tests.adapters.trained import facts, train


def conv1d(inputs: int, outputs: int) -> nn.Module:
    layer: Any = Conv1D(outputs, inputs)
    nn.init.normal_(layer.weight)
    return layer


LAYERS = {
    "linear": (sl.Linear(4, 6), (2, 3, 4)),
    "linear of torch": (nn.Linear(4, 6, bias=False), (3, 4)),
    "transposed": (conv1d(4, 6), (2, 3, 4)),
    "transposed and square": (conv1d(4, 4), (2, 3, 4)),
    "convolution of 1 dimension": (sl.Conv1d(4, 6, 3, padding=1), (2, 4, 7)),
    "convolution of 2 dimensions": (sl.Conv2d(4, 6, (3, 2), stride=2, dilation=(1, 2)), (2, 4, 7, 8)),
    "convolution of 3 dimensions": (nn.Conv3d(4, 6, 2, bias=False), (2, 4, 3, 4, 5)),
    "convolution with padding by reflection": (sl.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 7, 8)),
    "convolution of the same size": (sl.Conv1d(4, 6, 3, padding="same"), (2, 4, 7)),
    "convolution with groups": (sl.Conv2d(4, 6, 3, groups=2), (2, 4, 7, 8)),
    "convolution of each channel": (sl.Conv1d(4, 4, 3, groups=4), (2, 4, 7)),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_merged_equals_unmerged_and_unmerged_is_the_layer_itself(kind: str, dtype: torch.dtype) -> None:
    layer, shape = LAYERS[kind]
    torch.manual_seed(0)
    tree, x = sl.Chain(here=copy.deepcopy(layer)).to(dtype), torch.randn(shape, dtype=dtype)
    before, bare = facts(tree), tree(x)
    group = LoRA.on(tree, "here", rank=2, alpha=3)
    assert torch.equal(tree(x), bare)
    train(group)
    adapted = tree(x)
    group.merge()
    assert type(tree[0]) is type(layer)
    assert tree(x).dtype == adapted.dtype == dtype
    assert not torch.allclose(adapted, bare, atol=0.1)
    tolerance = 0.25 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(tree(x), adapted, atol=tolerance, rtol=tolerance)
    group.eject()
    assert facts(tree) == before
    assert torch.equal(tree(x), bare)


def test_each_group_of_a_convolution_has_a_rank_of_its_own() -> None:
    lora = LoRA(sl.Conv2d(4, 6, 3, groups=2), rank=3)
    down, up = lora.layer("lora.down", nn.Conv2d), lora.layer("lora.up", nn.Conv2d)
    assert (down.weight.shape, up.weight.shape) == ((6, 2, 3, 3), (6, 3, 1, 1))


def test_merging_leaves_the_bias_to_the_layer_and_rounds_once() -> None:
    tree = sl.Chain(here=sl.Linear(4, 4)).to(torch.bfloat16)
    layer = tree.layer("here", nn.Linear)
    group = LoRA.on(tree, "here", rank=2)
    train(group)
    down, up = (group[0].layer(f"lora.{name}", nn.Linear).weight.float() for name in ("down", "up"))
    group.scale = 0.5
    group.merge()
    merged = tree.layer("here", nn.Linear)
    assert merged.bias is layer.bias
    assert torch.equal(merged.weight, (layer.weight.float() + 0.5 * (up @ down)).bfloat16())


SPLIT = {"query": 8, "key": 2, "value": 2}
SUBSETS = [[part for number, part in enumerate(SPLIT) if chosen >> number & 1] for chosen in range(1, 8)]


@pytest.mark.parametrize("parts", SUBSETS, ids="-".join)
@pytest.mark.parametrize("fused", [sl.Linear(4, 12), conv1d(4, 12)], ids=["linear", "transposed"])
def test_of_a_fused_projection_only_the_chosen_parts_change(parts: list[str], fused: nn.Module) -> None:
    torch.manual_seed(0)
    tree, x = sl.Chain(fused=fused), torch.randn(2, 3, 4)
    before, bare = facts(tree), tree(x)
    group = LoRA.on(tree, "fused", rank=2, split=SPLIT, parts=parts)
    assert torch.equal(tree(x), bare)
    train(group)
    adapted = tree(x)
    for name, got, was in zip(SPLIT, adapted.split([8, 2, 2], -1), bare.split([8, 2, 2], -1), strict=True):
        assert torch.equal(got, was) == (name not in parts)
    group.merge()
    torch.testing.assert_close(tree(x), adapted)
    group.eject()
    assert facts(tree) == before
    assert torch.equal(tree(x), bare)


def test_a_part_is_adapted_as_a_layer_of_its_own_would_be() -> None:
    tree, x = sl.Chain(fused=sl.Linear(4, 12, bias=False)), torch.randn(3, 4)
    fused = tree.layer("fused", nn.Linear)
    (lora,) = LoRA.on(tree, "fused", rank=2, split=SPLIT, parts="key")
    train([lora])
    lora.scale = 1.0
    alone = sl.Chain(key=sl.Linear(4, 2, bias=False))
    alone.layer("key", nn.Linear).weight = nn.Parameter(fused.weight[8:10].detach())
    (single,) = LoRA.on(alone, "key", rank=2)
    for name in ("down", "up"):
        lora.branch.layer(f"parts.key.{name}", nn.Linear).weight = single.branch.layer(name, nn.Linear).weight
    nn.init.normal_(single.branch.layer("up", nn.Linear).weight)
    torch.testing.assert_close(tree(x)[:, 8:10], alone(x))


def test_parts_that_are_not_those_of_the_layer_are_refused() -> None:
    fused = sl.Linear(4, 12)
    with pytest.raises(ValueError, match="have 12 outputs together"):
        LoRA(fused, split={"query": 8, "key": 2})
    with pytest.raises(ValueError, match="Choose parts of query, key, value"):
        LoRA(fused, split=SPLIT, parts=["query", "output"])
    with pytest.raises(ValueError, match="Choose parts of query, key, value"):
        LoRA(fused, split=SPLIT, parts=[])
    with pytest.raises(ValueError, match="say what it is made of"):
        LoRA(fused, parts=["query"])
    with pytest.raises(TypeError, match="Only a linear layer"):
        LoRA(sl.Conv1d(4, 12, 1), split=SPLIT)


class Quantised(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.weight = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (sl.RMSNorm(4), "Received: RMSNorm"),
        (sl.Embedding(4, 4), "Received: Embedding"),
        (sl.ConvTranspose2d(4, 4, 2), "Received: ConvTranspose2d"),
        (sl.Chain(sl.Linear(4, 4)), "Received: Chain"),
        (Quantised(), "which is quantised"),
        (sl.Linear(4, 4).to(torch.float8_e4m3fn), "which is quantised"),
        (nn.MultiheadAttention(4, 1).out_proj, "never calls it"),
        (nn.LazyLinear(4), "Call the model once first"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_adapted_is_refused_by_name_and_nothing_changes(layer: nn.Module, says: str) -> None:
    tree = sl.Chain(here=layer)
    before = list(tree)
    with pytest.raises(TypeError, match=says) as caught:
        LoRA.on(tree, "here")
    assert caught.value.__notes__ == [f"This was for the {type(layer).__name__} at 'here'."]
    assert list(tree) == before


def test_a_layer_whose_weight_is_computed_is_adapted_and_not_merged() -> None:
    tree = sl.Chain(here=weight_norm(sl.Linear(4, 4)))
    group = LoRA.on(tree, "here", rank=2)
    train(group)
    adapted = tree(torch.ones(1, 4))
    with pytest.raises(TypeError, match="computed in every call"):
        group.merge()
    assert torch.equal(tree(torch.ones(1, 4)), adapted)


def test_a_subclass_is_merged_into_its_own_class() -> None:
    class Doubling(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
            return super().forward(input) * 2

    tree = sl.Chain(here=Doubling(4, 4))
    group = LoRA.on(tree, "here", rank=2)
    group.merge()
    assert type(tree[0]) is Doubling
