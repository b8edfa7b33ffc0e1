from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from suture import layers as sl


def test_gated_feedforward_equals_transformers() -> None:
    torch.manual_seed(0)
    theirs = LlamaMLP(LlamaConfig(hidden_size=16, num_attention_heads=1, intermediate_size=40, mlp_bias=True))
    ours = sl.GatedFeedForward(16, 40, bias=True)
    for name, path in {"gate_proj": "branches.gated.gate", "up_proj": "branches.up", "down_proj": "down"}.items():
        ours.layer(path, nn.Linear).load_state_dict(theirs.get_submodule(name).state_dict())
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)


def test_gated_feedforward_has_no_bias_and_another_activation_on_demand() -> None:
    layer = sl.GatedFeedForward(16, 40, activation=sl.GELU())
    assert all(linear.bias is None for linear in layer.layers(sl.Linear))
    assert layer.find(sl.SiLU) is None
    assert layer.find(sl.GELU) is not None


def test_feedforward() -> None:
    layer, x = sl.FeedForward(8, 20, activation=sl.Tanh()), torch.randn(3, 8)
    up, down = layer.layers(sl.Linear)
    torch.testing.assert_close(layer(x), down(up(x).tanh()))
    assert sl.FeedForward(8, 20).find(sl.GELU) is not None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_multilinear_has_a_relu_between_each_two(number: int) -> None:
    layer = sl.MultiLinear(4, 3, inner_dim=8, num_layers=number)
    kinds = [type(child) for child in layer]
    assert kinds == [sl.Linear, *[sl.ReLU, sl.Linear] * (number - 1)]
    assert layer(torch.zeros(2, 4)).shape == (2, 3)


def test_multilinear_of_no_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one linear layer; received num_layers=0"):
        sl.MultiLinear(4, 3, inner_dim=8, num_layers=0)
