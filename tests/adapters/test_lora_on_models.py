"""LoRA on whole models: a tied head, generation, and a GPT-2 of transformers as a plain module."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import suture
from suture import CausalLM, SelectionError
from suture import layers as sl
from suture.adapters import CrossAttention, Dropout, LoRA
from tests.adapters.trained import facts, train
from tests.plain_models import ImageClassifier, tiny_gpt2

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


def test_merged_into_a_tied_head_the_embedding_stays_and_the_model_is_saved_untied(
    tiny_llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    lm = CausalLM.from_pretrained(tiny_llama_folder(tie_word_embeddings=True))
    embedding = lm.backbone.layer("embedding", nn.Embedding).weight
    assert lm.layer("head", nn.Linear).weight is embedding
    values, bare, before = embedding.clone(), lm(TOKENS), facts(lm)
    group = LoRA.on(lm, "head", rank=4)
    train(group)
    adapted = lm(TOKENS)
    group.merge()
    torch.testing.assert_close(lm(TOKENS), adapted, atol=1e-4, rtol=1e-4)
    assert lm.backbone.layer("embedding", nn.Embedding).weight is embedding
    assert torch.equal(embedding, values)

    lm.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert {"lm_head.weight", "model.embed_tokens.weight"} < set(stored)
    assert torch.equal(CausalLM.from_pretrained(tmp_path)(TOKENS), lm(TOKENS))

    group.eject()
    assert facts(lm) == before
    assert torch.equal(lm(TOKENS), bare)


def test_adapted_generation_with_a_cache_equals_an_uncached_loop(tiny_llama_folder: Callable[..., Path]) -> None:
    lm = CausalLM.from_pretrained(tiny_llama_folder())
    bare = lm.generate(TOKENS, max_new_tokens=10, stop_ids=[])
    group = LoRA.on(lm, "query", "value", "down", rank=2)
    train(group)
    ids = TOKENS
    for _ in range(10):
        ids = torch.cat([ids, lm(ids)[:, -1:].argmax(-1)], dim=-1)
    assert torch.equal(lm.generate(TOKENS, max_new_tokens=10, stop_ids=[]), ids)
    group.merge()
    assert torch.equal(lm.generate(TOKENS, max_new_tokens=10, stop_ids=[]), ids)
    group.eject()
    assert torch.equal(lm.generate(TOKENS, max_new_tokens=10, stop_ids=[]), bare)
    assert not torch.equal(ids, bare)


def logits(gpt2: Any) -> Tensor:
    return gpt2(TOKENS).logits


def test_on_a_plain_module_merged_equals_unmerged_and_ejected_is_the_bare_module() -> None:
    gpt2 = tiny_gpt2()
    before, bare = facts(gpt2), logits(gpt2)
    group = LoRA.on(gpt2, "c_attn", "c_proj", "lm_head", rank=4)
    assert len(group) == 7
    assert torch.equal(logits(gpt2), bare)
    train(group)
    adapted = logits(gpt2)
    assert not torch.allclose(adapted, bare, atol=0.1)
    for _ in range(3):
        group.merge()
        torch.testing.assert_close(logits(gpt2), adapted, atol=1e-3, rtol=1e-3)
        group.unmerge()
        assert torch.equal(logits(gpt2), adapted)
    group.merge()
    group.eject()
    assert facts(gpt2) == before
    assert torch.equal(logits(gpt2), bare)
    group.inject()
    assert torch.equal(logits(gpt2), adapted)


@pytest.mark.parametrize("parts", [["query"], ["key", "value"], ["query", "key", "value"]], ids="-".join)
def test_parts_of_the_fused_projection_of_a_plain_module(parts: list[str]) -> None:
    gpt2 = tiny_gpt2()
    bare = logits(gpt2)
    split = {"query": 16, "key": 16, "value": 16}
    group = LoRA.on(gpt2, "c_attn", rank=2, split=split, parts=parts)
    train(group)
    adapted = logits(gpt2)
    group.merge()
    torch.testing.assert_close(logits(gpt2), adapted, atol=1e-3, rtol=1e-3)
    group.eject()
    assert torch.equal(logits(gpt2), bare)


def test_generation_of_a_plain_module_is_that_of_the_adapted_one() -> None:
    gpt2 = tiny_gpt2()
    group = LoRA.on(gpt2, "c_attn", rank=4)
    train(group)
    ids = TOKENS
    for _ in range(8):
        ids = torch.cat([ids, logits_of(gpt2, ids)[:, -1:].argmax(-1)], dim=-1)
    arguments: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assert torch.equal(gpt2.generate(TOKENS, attention_mask=torch.ones_like(TOKENS), **arguments), ids)


def logits_of(gpt2: Any, ids: Tensor) -> Tensor:
    return gpt2(ids).logits


def test_saved_from_one_plain_module_and_loaded_into_another(tmp_path: Path) -> None:
    path = tmp_path / "lora.safetensors"
    gpt2 = tiny_gpt2()
    other: Any = copy.deepcopy(gpt2)
    group = LoRA.on(gpt2, "c_attn", rank=4)
    train(group)
    group.save(path)
    stored = safetensors.torch.load_file(path)
    assert "transformer.h.0.attn.c_attn+LoRA.lora.down.weight" in stored
    loaded = LoRA.load(other, path)
    assert torch.equal(logits(other), logits(gpt2))
    loaded.eject()
    with pytest.raises(SelectionError, match=r"no layer at 'transformer\.h\.0\.attn\.c_attn'"):
        LoRA.load(ImageClassifier(), path)


def test_a_copy_of_an_adapted_plain_module_is_independent() -> None:
    gpt2 = tiny_gpt2()
    bare = logits(gpt2)
    group = LoRA.on(gpt2, "c_attn", rank=4)
    train(group)
    adapted = logits(gpt2)
    copied: Any = copy.deepcopy(gpt2)
    assert torch.equal(logits(copied), adapted)
    for module in list(copied.modules()):
        if isinstance(module, LoRA):
            module.eject()
    assert torch.equal(logits(copied), bare)
    assert torch.equal(logits(gpt2), adapted)


def test_dropout_and_cross_attention_on_a_plain_module() -> None:
    gpt2 = tiny_gpt2()
    before, bare = facts(gpt2), logits(gpt2)
    sequence = torch.randn(1, 5, 6)
    dropouts = Dropout.on(gpt2, "h.*.mlp", p=0.5)
    attentions = CrossAttention.on(gpt2, "h.#", num_heads=2, sequence_dim=6)
    with suture.context(gpt2, cross_attention={"sequence": sequence}), dropouts, attentions:
        assert torch.equal(logits(gpt2), bare)
        with torch.no_grad():
            for parameter in attentions.parameters():
                parameter.copy_(torch.randn_like(parameter))
        adapted = logits(gpt2)
        assert not torch.allclose(adapted, bare, atol=0.1)
        gpt2.train()
        assert not torch.equal(logits(gpt2), adapted)
        gpt2.eval()
    assert facts(gpt2) == before
    assert torch.equal(logits(gpt2), bare)


def test_convolutions_of_a_plain_module() -> None:
    torch.manual_seed(0)
    model, images = ImageClassifier().eval(), torch.randn(2, 3, 9, 9)
    before, bare = facts(model), model(images)
    group = LoRA.on(model, nn.Conv2d, nn.Linear, rank=2)
    train(group)
    adapted = model(images)
    group.merge()
    torch.testing.assert_close(model(images), adapted, atol=1e-3, rtol=1e-3)
    group.eject()
    assert facts(model) == before
    assert torch.equal(model(images), bare)


def test_a_chain_inside_a_plain_module_is_adapted_as_any_tree() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = sl.Chain(up=sl.Linear(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    model, x = Around(), torch.ones(1, 4)
    bare = model(x)
    group = LoRA.on(model, "up", rank=2)
    train(group)
    assert not torch.equal(model(x), bare)
    assert group[0].target_path == "inner.up"
    group.eject()
    assert torch.equal(model(x), bare)
