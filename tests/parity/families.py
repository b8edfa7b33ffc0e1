"""Small random models of every family, as transformers makes and saves them, and what to compare with them.

A freshly made small model predicts one token whatever it sees, and would hide a weight that went to the wrong place: so
matrices are scaled, and norms and biases moved off one and zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor

VOCABULARY, POSITIONS = 320, 128
EMBEDDING_SCALE, BLOCK_SCALE = 4, 12
"""Where a head is tied and blocks add little, a model repeats the token that it sees."""
EMBEDDINGS = ("embed_tokens", "wte", "wpe", "lm_head")
BLOCKED = -3e38
"""What is added to scores that shall not count. Infinity would give NaN for a row of nothing else."""


@dataclass(frozen=True)
class Example:
    """A model of a family.

    Attributes:
        family: The name of transformers' classes, without their ending.
        fields: Of its configuration.
        head: The ending of the class that has a head.
        window: How far the attention of some blocks sees, None for all.
    """

    family: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    head: str = "ForCausalLM"
    window: int | None = None

    def save(self, folder: Path) -> Path:
        """Makes the model, the same every time, in `folder`, unless it is there."""
        if (folder / "config.json").exists():
            return folder
        config_class = getattr(transformers, f"{self.family}Config")
        model_class = getattr(transformers, f"{self.family.removesuffix('Text')}{self.head}")
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            model = model_class(config_class(**(BASE[self.family] | dict(self.fields))))
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2:
                    parameter.mul_(EMBEDDING_SCALE if any(part in name for part in EMBEDDINGS) else BLOCK_SCALE)
                else:
                    parameter.add_(0.2 * torch.randn_like(parameter))
        model.save_pretrained(folder)
        return folder


_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GEMMA = _SIZES | {"head_dim": 16}
BASE: dict[str, dict[str, Any]] = {
    "Llama": _SIZES | {"tie_word_embeddings": False},
    "Mistral": _SIZES,
    "GPT2": {
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": POSITIONS,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "Gemma": _GEMMA,
    "Gemma2": _GEMMA | {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 8.0},
    "Gemma3Text": _GEMMA
    | {"query_pre_attn_scalar": 24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
}
LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _llama(**fields: Any) -> Example:
    return Example("Llama", fields)


def _gpt2(**fields: Any) -> Example:
    return Example("GPT2", fields, head="LMHeadModel")


def _gemma(**fields: Any) -> Example:
    return Example("Gemma", fields)


def _gemma2(window: int = 5, **fields: Any) -> Example:
    return Example("Gemma2", {"sliding_window": window, **fields}, window=window)


def _mistral(window: int | None = 5, **fields: Any) -> Example:
    return Example("Mistral", {"sliding_window": window, **fields}, window=window)


def _gemma3(window: int = 5, **fields: Any) -> Example:
    return Example("Gemma3Text", {"sliding_window": window, **fields}, window=window)


PLAIN: dict[str, Example] = {
    "Llama": _llama(),
    "GPT-2": _gpt2(),
    "Gemma": _gemma(),
    "Gemma 2": _gemma2(),
    "Gemma 3": _gemma3(),
    "Mistral": _mistral(),
}
"""One example of each family."""

EXAMPLES: dict[str, Example] = {
    **PLAIN,
    "Llama, tied": _llama(tie_word_embeddings=True),
    "Llama, one query head for each key head": _llama(num_key_value_heads=4),
    "Llama, four query heads for one key head": _llama(num_key_value_heads=1),
    "Llama, llama3 scaling": _llama(rope_parameters=LLAMA3),
    "Llama, linear scaling": _llama(rope_parameters=LINEAR),
    "Llama, attention bias": _llama(attention_bias=True),
    "Llama, feed-forward bias": _llama(mlp_bias=True),
    "Llama, wide heads": _llama(head_dim=16),
    "GPT-2, untied": _gpt2(tie_word_embeddings=False),
    "GPT-2, narrow feed-forward, other activation": _gpt2(n_inner=48, activation_function="relu"),
    "GPT-2, exact activation": _gpt2(activation_function="gelu"),
    "GPT-2, scores not scaled": _gpt2(scale_attn_weights=False, layer_norm_epsilon=1e-3),
    "GPT-2, scores scaled by the block": _gpt2(scale_attn_by_inverse_layer_idx=True),
    "GPT-2, scores scaled by the block alone": _gpt2(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True),
    "Gemma, untied": _gemma(tie_word_embeddings=False),
    "Gemma, one key head, linear scaling": _gemma(num_key_value_heads=1, rope_parameters=LINEAR),
    "Gemma, attention bias": _gemma(attention_bias=True, head_dim=8),
    "Gemma 2, window 3": _gemma2(window=3),
    "Gemma 2, window 4": _gemma2(window=4),
    "Gemma 2, window 8": _gemma2(window=8),
    "Gemma 2, no caps": _gemma2(attn_logit_softcapping=None, final_logit_softcapping=None),
    "Gemma 2, untied, attention bias": _gemma2(tie_word_embeddings=False, attention_bias=True),
    "Gemma 2, other blocks with a window": _gemma2(
        layer_types=["full_attention", "sliding_attention", "full_attention"]
    ),
    "Gemma 3, window 3": _gemma3(window=3),
    "Gemma 3, window 4": _gemma3(window=4),
    "Gemma 3, window 8": _gemma3(window=8),
    "Gemma 3, capped logits": _gemma3(final_logit_softcapping=5.0),
    "Gemma 3, untied, attention bias": _gemma3(tie_word_embeddings=False, attention_bias=True),
    "Gemma 3, scaled rotary, every block with a window but the first": _gemma3(
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters={"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}},
    ),
    "Mistral, window 3": _mistral(window=3),
    "Mistral, window 4": _mistral(window=4),
    "Mistral, window 8": _mistral(window=8),
    "Mistral, no window": _mistral(window=None),
}
"""Every setting that a configuration may have and that changes numbers, once at least."""


class Reference:
    """transformers' model of a folder, with attention that shows what it computes."""

    def __init__(self, folder: Path, **options: Any) -> None:
        auto: Any = transformers.AutoModelForCausalLM
        self.model: Any = auto.from_pretrained(folder, attn_implementation="eager", **options).eval()

    def logits(self, ids: Tensor | None = None, real: Tensor | None = None, **inputs: Any) -> Tensor:
        """(B, T, V). `real` is the padding mask, True = a real token."""
        if real is not None:
            inputs |= {"attention_mask": real.long(), "position_ids": (real.cumsum(-1) - 1).clamp(min=0)}
        with torch.no_grad():
            return cast("Tensor", self.model(input_ids=ids, use_cache=False, **inputs).logits)

    def masked_logits(self, ids: Tensor, allowed: Tensor, window: int | None) -> Tensor:
        """The same under a mask of who may attend to whom, (B, H, T, T), True = may."""
        length = ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        masks = {"full_attention": allowed & causal, "sliding_attention": allowed & causal.triu(1 - (window or length))}
        added = {name: torch.zeros(mask.shape).masked_fill(~mask, BLOCKED) for name, mask in masks.items()}
        by_kind = hasattr(self.model.config, "layer_types")
        return self.logits(ids, attention_mask=added if by_kind else added["sliding_attention"])

    def greedy(self, ids: Tensor, real: Tensor, new: int) -> Tensor:
        """What it continues with, whatever the checkpoint says about ends."""
        self.model.generation_config.eos_token_id = None
        made = self.model.generate(ids, attention_mask=real.long(), max_new_tokens=new, do_sample=False, pad_token_id=0)
        return cast("Tensor", made)[:, ids.shape[1] :]


def left_padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Ids and padding mask."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    real = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    return ids, real
