"""A small Llama of this library and of transformers, with the same weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from suture import layers as sl
from suture.models.backbone import Backbone, TokenEmbedding

VOCABULARY, WIDTH, HEAD_DIM, HEADS, KEY_VALUE_HEADS, BLOCKS, POSITIONS = 50, 32, 8, 4, 2, 3, 40

_NAMES = {
    "attention.norm": "input_layernorm",
    "attention.heads.projections.query": "self_attn.q_proj",
    "attention.heads.projections.key": "self_attn.k_proj",
    "attention.heads.projections.value": "self_attn.v_proj",
    "attention.heads.output": "self_attn.o_proj",
    "feedforward.norm": "post_attention_layernorm",
    "feedforward.gated.branches.gated.gate": "mlp.gate_proj",
    "feedforward.gated.branches.up": "mlp.up_proj",
    "feedforward.gated.down": "mlp.down_proj",
}


def decoder(blocks: int = BLOCKS, max_positions: int | None = POSITIONS) -> Backbone:
    """A decoder of random weights, large enough that what it predicts depends on what it sees."""
    torch.manual_seed(0)
    backbone = Backbone(
        embedding=TokenEmbedding(VOCABULARY, WIDTH),
        blocks=sl.Stack(*(block() for _ in range(blocks))),
        norm=sl.RMSNorm(WIDTH, eps=1e-5),
        max_positions=max_positions,
    )
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.3)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return backbone


def block() -> sl.Chain:
    heads = sl.SelfAttention(
        WIDTH, num_heads=HEADS, num_key_value_heads=KEY_VALUE_HEADS, bias=False, causal=True, rotary=sl.Rotary(HEAD_DIM)
    )
    return sl.Chain(
        attention=sl.Residual(norm=sl.RMSNorm(WIDTH, eps=1e-5), heads=heads),
        feedforward=sl.Residual(norm=sl.RMSNorm(WIDTH, eps=1e-5), gated=sl.GatedFeedForward(WIDTH, 48)),
    )


class TransformersDecoder:
    """transformers' Llama with the weights of a backbone, called without a cache."""

    def __init__(self, backbone: Backbone) -> None:
        fields: dict[str, Any] = {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "intermediate_size": 48,
            "num_hidden_layers": BLOCKS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KEY_VALUE_HEADS,
            "max_position_embeddings": POSITIONS,
            "rms_norm_eps": 1e-5,
        }
        self.model = LlamaModel(LlamaConfig(**fields)).eval()
        pairs = {"embedding": "embed_tokens", "norm": "norm"}
        for number in range(BLOCKS):
            pairs |= {f"blocks.{number}.{ours}": f"layers.{number}.{theirs}" for ours, theirs in _NAMES.items()}
        for ours, theirs in pairs.items():
            self.model.get_submodule(theirs).load_state_dict(backbone.layer(ours).state_dict())

    def __call__(self, token_ids: Tensor, **entries: Tensor) -> Tensor:
        arguments: dict[str, Any] = {"input_ids": token_ids, "use_cache": False, **entries}
        return self.model(**arguments).last_hidden_state
