"""The adapters that ship in recipes and in saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import suture
from suture import Recipe
from suture import layers as sl
from suture.adapters import CrossAttention, Dropout, LoRA

X = torch.randn(2, 3, 4)


def model() -> sl.Stack:
    torch.manual_seed(0)
    return sl.Stack(
        *(sl.Chain(attention=sl.Residual(query=sl.Linear(4, 4)), output=sl.Linear(4, 4)) for _ in range(2))
    ).eval()


ADAPTERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "LoRA": (LoRA, "query", {"rank": 2, "alpha": 3, "name": "style"}),
    "LoRA of parts": (LoRA, "output", {"rank": 2, "split": {"a": 1, "b": 3}, "parts": ["b"]}),
    "LoRA in another dtype": (LoRA, "query", {"rank": 2, "dtype": torch.float64}),
    "Dropout": (Dropout, "output", {"p": 0.2}),
    "Dropout of a residual branch": (Dropout, "attention", {"p": 0.2}),
    "CrossAttention": (CrossAttention, "#", {"num_heads": 2, "sequence_dim": 6, "name": "image"}),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_recipe_and_tensors_together_give_the_same_outputs(kind: str, tmp_path: Path) -> None:
    adapter, where, arguments = ADAPTERS[kind]
    tree = model()
    group = adapter.on(tree, where, **arguments)
    with torch.no_grad():
        for parameter in group.parameters():
            parameter.copy_(torch.randn_like(parameter))
    entries: dict[str, Any] = {"sequence": torch.randn(2, 5, 6)} if adapter is CrossAttention else {}
    suture.save(tree, tmp_path / "saved")
    fresh = model()
    suture.recipe(tree).save(tmp_path / "recipe.json")
    edit = Recipe.load(tmp_path / "recipe.json").apply(fresh)
    suture.load(fresh, tmp_path / "saved")
    assert repr(fresh) == repr(tree)
    assert list(fresh.state_dict()) == list(tree.state_dict())
    assert torch.equal(fresh(X, **entries), tree(X, **entries))
    edit.undo()
    group.eject()
    assert torch.equal(fresh(X), tree(X))
