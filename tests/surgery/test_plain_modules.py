"""Selections, edits and adapters on models that know nothing of Suture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import suture
from suture import layers as sl
from suture import select
from suture.surgery.adapter import Adapter
from suture.surgery.survey import Match, SelectionError
from tests.plain_models import Bottleneck, ImageClassifier, tiny_gpt2

IDS = torch.tensor([[3, 14, 15, 9, 26], [5, 35, 8, 9, 7]])
IMAGE = torch.linspace(-1, 1, 3 * 64).reshape(1, 3, 8, 8)


@pytest.fixture
def gpt2() -> Any:
    return tiny_gpt2()


@pytest.fixture
def classifier() -> ImageClassifier:
    return ImageClassifier().eval()


def logits(gpt2: Any, **arguments: Any) -> Tensor:
    with torch.no_grad():
        return gpt2(IDS, **arguments).logits


class AddsSide(sl.Chain, Adapter[nn.Module]):
    """Adds an entry of the context to what its target returns."""

    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, sl.Sum(sl.Identity(), sl.UseContext("side", "shift")))


def is_fused(match: Match) -> bool:
    return getattr(match.layer, "nf", 0) == 3 * 16


# Selecting


def test_patterns_types_and_predicates_select_in_a_plain_model(gpt2: Any) -> None:
    assert select(gpt2, "h.1.attn.*").paths == (
        "transformer.h.1.attn.c_attn",
        "transformer.h.1.attn.c_proj",
        "transformer.h.1.attn.attn_dropout",
        "transformer.h.1.attn.resid_dropout",
    )
    assert select(gpt2, nn.LayerNorm).paths[-1] == "transformer.ln_f"
    assert select(gpt2, "h.#").select("c_attn").paths == select(gpt2, "c_attn").paths
    assert len(select(gpt2, is_fused)) == 2


def test_layers_inside_plain_modules_of_a_tree_are_selected() -> None:
    model = sl.Chain(first=sl.Linear(3, 3), encoder=nn.Sequential(nn.Linear(3, 3), sl.Chain(nn.ReLU())))
    assert select(model, "**").paths == ("first", "encoder", "encoder.0", "encoder.1", "encoder.1.ReLU")
    edit = select(model, "encoder.0").remove()
    assert select(model, "**").paths == ("first", "encoder", "encoder.1", "encoder.1.ReLU")
    edit.undo()
    assert "encoder.0" in select(model, "**").paths


def test_nothing_selected_says_what_is_near(gpt2: Any) -> None:
    with pytest.raises(SelectionError, match="Near to it: 'c_attn'"):
        select(gpt2, "c_atn")


def test_a_selection_is_printed_as_the_tree_with_marks(classifier: ImageClassifier) -> None:
    printed = repr(select(classifier, "layer1.1.conv1"))
    assert "▸" in printed
    assert "1 of 24 layers selected" in printed


def test_a_plain_module_at_two_places_has_each_of_its_layers_once() -> None:
    shared = Bottleneck(4)
    model = nn.Sequential(shared, shared)
    assert select(model, "#").paths == ("0", "1")
    assert select(model, "conv1").paths == ("0.conv1",)


# Editing


def test_every_edit_of_a_plain_model_and_back(classifier: ImageClassifier) -> None:
    before, keys = classifier(IMAGE), list(classifier.state_dict())
    modules = list(classifier.modules())
    edits = [
        select(classifier, "layer1.0").remove(),
        select(classifier, "fc").wrap(lambda fc: sl.Sum(fc, low=sl.Chain(sl.Linear(16, 2), sl.Linear(2, 10)))),
        select(classifier, "layer2.0").insert_after(lambda conv: sl.Dropout(0.5)),
        select(classifier, "layer2.0").insert_before(lambda conv: sl.Identity()),
        select(classifier, "relu").replace(lambda relu: nn.SiLU()),
    ]
    assert not torch.allclose(classifier(IMAGE), before)
    for number in (1, 3, 0, 4, 2):
        edits[number].undo()
    assert torch.equal(classifier(IMAGE), before)
    assert list(classifier.state_dict()) == keys
    assert all(now is then for now, then in zip(classifier.modules(), modules, strict=True))


def test_a_removed_block_of_gpt2_is_passed_by_in_generation_too(gpt2: Any) -> None:
    other = tiny_gpt2()
    other.load_state_dict(gpt2.state_dict())
    edit = select(gpt2, "h.1").remove()
    with torch.no_grad():
        hidden = other.transformer.h[0](other.transformer.wte(IDS) + other.transformer.wpe(torch.arange(5)))
        expected = other.lm_head(other.transformer.ln_f(hidden))
    # Both attend causally: GPT-2 passes no mask for a batch without padding.
    assert torch.allclose(logits(gpt2)[:, :1], expected[:, :1], atol=1e-4)
    cached = gpt2.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=True)
    uncached = gpt2.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=False)
    assert torch.equal(cached, uncached)
    edit.undo()
    assert torch.equal(logits(gpt2), logits(other))


def test_editing_takes_back_what_was_done_in_a_plain_model(gpt2: Any) -> None:
    before, keys = logits(gpt2), list(gpt2.state_dict())
    with pytest.raises(RuntimeError, match="stop"), suture.editing(gpt2):  # noqa: PT012 (the block is what is tested)
        select(gpt2, "c_attn").wrap(lambda layer: sl.Chain(layer))
        select(gpt2, "mlp").remove()
        raise RuntimeError("stop")
    assert torch.equal(logits(gpt2), before)
    assert list(gpt2.state_dict()) == keys


def test_selections_follow_the_layers_of_a_plain_model(gpt2: Any) -> None:
    attention, inner = select(gpt2, "c_attn"), select(gpt2, "c_attn", "c_proj")
    attention.wrap(lambda layer: sl.Chain(layer))
    assert inner.where(lambda match: True).paths == inner.paths
    attention.wrap(lambda layer: sl.Chain(layer))
    assert select(gpt2, "h.0.attn.c_attn*").paths == (
        "transformer.h.0.attn.c_attn+Chain",
        "transformer.h.0.attn.c_attn+Chain_2",
        "transformer.h.0.attn.c_attn",
    )


def test_freeze_and_to_reach_into_plain_modules(gpt2: Any) -> None:
    select(gpt2, "attn").freeze()
    assert {name.split(".")[3] for name, p in gpt2.named_parameters() if not p.requires_grad} == {"attn"}
    select(gpt2, "attn").unfreeze()
    select(gpt2, "mlp").to(torch.float64)
    assert {name.split(".")[3] for name, p in gpt2.named_parameters() if p.dtype == torch.float64} == {"mlp"}


# Adapters and contexts


def test_an_adapter_that_reads_a_context_works_inside_gpt2(gpt2: Any) -> None:
    before = logits(gpt2)
    shift = torch.linspace(-3, 3, 16)
    adapters = [AddsSide(block.attn.c_proj).inject(block.attn) for block in gpt2.transformer.h]
    with suture.context(gpt2, side={"shift": shift}):
        steered = logits(gpt2)
        generated = gpt2.generate(IDS, max_new_tokens=4, do_sample=False)
    assert not torch.allclose(steered, before)
    with torch.no_grad():
        for block in gpt2.transformer.h:
            block.attn.get_submodule("c_proj.c_proj").bias += shift
    with suture.context(gpt2, side={"shift": torch.zeros(16)}):
        assert torch.allclose(logits(gpt2), steered, atol=1e-4)
    assert generated.shape == (2, 9)
    with pytest.raises(sl.MissingContextError, match="with "):
        logits(gpt2)
    for adapter in adapters:
        adapter.eject()
    with pytest.raises(ValueError, match="Nothing in GPT2LMHeadModel reads"), suture.context(gpt2, side={"shift": 0}):
        pass


def test_select_adapts_and_nested_adapters_leave_in_any_order(gpt2: Any) -> None:
    before, keys = logits(gpt2), list(gpt2.state_dict())
    edits = [select(gpt2, "c_attn", "mlp").adapt(lambda layer: AddsSide(layer)) for _ in range(3)]
    for number in (1, 0, 2):
        edits[number].undo()
    assert torch.equal(logits(gpt2), before)
    assert list(gpt2.state_dict()) == keys
