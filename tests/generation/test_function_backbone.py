from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture.generation import CausalLM
from suture.generation.function_backbone import FunctionBackbone

IDS = torch.tensor([[1, 2, 3]])


def inputs_of(backbone: FunctionBackbone) -> list[str]:
    return [read.key for read in backbone.context_inputs]


def test_the_signature_says_which_inputs_it_takes() -> None:
    def function(token_ids: Tensor, cache: Any = None, *, padding_mask: Tensor | None = None, scale: int = 1) -> Tensor:
        return token_ids

    assert inputs_of(FunctionBackbone(function)) == ["padding_mask", "cache"]


def test_inputs_for_anything_are_not_taken_as_inputs() -> None:
    def function(token_ids: Tensor, **anything: Any) -> Tensor:
        return token_ids

    assert inputs_of(FunctionBackbone(function)) == []


def test_only_what_was_given_is_passed() -> None:
    received: list[dict[str, Any]] = []

    def function(token_ids: Tensor, padding_mask: Any = "its own", positions: Any = "its own") -> Tensor:
        received.append({"padding_mask": padding_mask, "positions": positions})
        return token_ids

    backbone = FunctionBackbone(function)
    backbone(IDS)
    backbone(IDS, positions=IDS)
    assert received == [
        {"padding_mask": "its own", "positions": "its own"},
        {"padding_mask": "its own", "positions": IDS},
    ]


def test_required_inputs_have_defaults() -> None:
    def function(token_ids: Tensor, padding_mask: Tensor, positions: Tensor) -> Tensor:
        return torch.stack([padding_mask, positions])

    mask = torch.tensor([[False, True, True]])
    assert FunctionBackbone(function)(IDS).tolist() == [[[1, 1, 1]], [[0, 1, 2]]]
    assert FunctionBackbone(function)(IDS, padding_mask=mask).tolist() == [[[0, 1, 1]], [[0, 0, 1]]]


def test_a_module_is_owned() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 2)

        def forward(self, token_ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
            hidden: Tensor = self.embedding(token_ids)
            return hidden if padding_mask is None else hidden * padding_mask[..., None]

    lm = CausalLM(Plain(), nn.Linear(2, 5, bias=False))
    assert list(lm.state_dict()) == ["backbone.Plain.embedding.weight", "head.weight"]
    mask = torch.tensor([[False, True, True]])
    assert (lm(IDS, padding_mask=mask)[0, 0] == 0).all()
    assert (lm(IDS)[0, 0] != 0).all()


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="A backbone is a tree, a graph, a module or a function"):
        CausalLM("backbone", nn.Identity())  # pyright: ignore[reportArgumentType]


def test_a_cache_needs_something_that_makes_it() -> None:
    def function(token_ids: Tensor, cache: Any = None) -> Tensor:
        return token_ids

    with pytest.raises(
        TypeError, match=r"function takes a cache, so it must have a method init_cache\(batch, length\)"
    ):
        CausalLM(function, nn.Identity()).generate([1])
