"""The Gemma 2 family: as Gemma, with norms on both sides of a branch, soft caps, and a window in every other block.

Source: https://arxiv.org/abs/2408.00118.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from suture import layers as sl
from suture.layers.rotary import RotaryScaling
from suture.models.backbone import Backbone
from suture.models.block import TransformerBlock
from suture.models.block_names import TRANSFORMERS_IGNORED, gguf_rules, transformers_rules
from suture.models.family import Family
from suture.models.gemma_parts import (
    GGUF_NORMS,
    TRANSFORMERS_NORMS,
    ScaledTokenEmbedding,
    ZeroCentredRMSNorm,
    capped_head,
    gated_feedforward,
    head_path,
    self_attention,
    windowed,
)
from suture.models.gemma_settings import (
    GemmaSizes,
    gguf_attention_divisor,
    open_fields,
    open_gguf_fields,
    read_gguf_sizes,
    read_layer_types,
    read_sizes,
    whole,
    write_layer_types,
    write_sizes,
)
from suture.models.rotary_settings import read_gguf_rotary, read_rotary, write_rotary
from suture.weights.checkpoint import Checkpoint
from suture.weights.names import NameTable

PATTERN = 2
"""Every second block has no window."""

LARGEST = 46
"""Blocks of the largest model."""


@dataclass(frozen=True, kw_only=True)
class Gemma2Config(GemmaSizes):
    """The numbers that make one Gemma 2.

    Attention scores are divided by the root of `attention_divisor`. The attention of the blocks that `windowed` says
    sees the last `window` tokens. A cap of None is none.
    """

    rotary_base: float
    rotary_scaling: RotaryScaling | None
    attention_divisor: float
    attention_cap: float | None
    logits_cap: float | None
    window: int
    windowed: tuple[bool, ...]


def build(config: Gemma2Config) -> tuple[Backbone, nn.Module]:
    """The tree: a backbone from token ids (B, T) to hidden states (B, T, D), and a head to logits (B, T, V).

    Where logits are capped, the head is a chain of `projection` and `cap`.
    """
    embedding = ScaledTokenEmbedding(config.vocabulary_size, config.embedding_dim)
    backbone = Backbone(
        embedding=embedding,
        blocks=sl.Stack(*(block(config, config.window if has_window else None) for has_window in config.windowed)),
        norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
        max_positions=config.max_positions,
    )
    return backbone, capped_head(embedding, config.tied, config.logits_cap)


def block(config: Gemma2Config, window: int | None) -> TransformerBlock:
    """One block of the tree, whose attention sees the last `window` tokens, None for all."""
    return TransformerBlock(
        attention=sl.Residual(
            norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
            heads=self_attention(
                config,
                rotary=sl.Rotary(config.head_dim, base=config.rotary_base, scaling=config.rotary_scaling),
                attend=attend(config, window),
            ),
            post_norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
        ),
        feedforward=sl.Residual(
            norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
            gated=gated_feedforward(config.embedding_dim, config.feedforward_dim),
            post_norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
        ),
    )


def attend(config: Gemma2Config, window: int | None) -> sl.ScaledDotProductAttention:
    """What attends in a block."""
    scale = config.attention_divisor**-0.5
    if config.attention_cap is None:
        return sl.ScaledDotProductAttention(causal=True, scale=scale, window=window)
    return sl.SoftCappedAttention(config.attention_cap, causal=True, scale=scale, window=window)


def with_blocks(config: Gemma2Config, blocks: Sequence[nn.Module]) -> Gemma2Config:
    """The configuration of a model of these blocks."""
    return replace(config, num_blocks=len(blocks), windowed=windowed(blocks))


def names(config: Gemma2Config, format: Literal["transformers", "gguf"]) -> NameTable:  # noqa: A002 (what it is called)
    """The name table of a format."""
    head = head_path(config.logits_cap)
    if format == "transformers":
        return NameTable((*transformers_rules(head), *TRANSFORMERS_NORMS), ignored=TRANSFORMERS_IGNORED)
    return NameTable((*gguf_rules(head=head), *GGUF_NORMS))


def read(checkpoint: Checkpoint) -> Gemma2Config:
    """The configuration of a checkpoint.

    Raises:
        CheckpointError: A field is missing, wrong, or not understood.
    """
    return _read_gguf(checkpoint) if checkpoint.format == "gguf" else _read_transformers(checkpoint)


def _read_transformers(checkpoint: Checkpoint) -> Gemma2Config:
    fields = open_fields(checkpoint)
    fields.only("hidden_act", "gelu_pytorch_tanh")
    sizes = read_sizes(fields)
    base, scaling = read_rotary(fields, sizes["max_positions"])
    config = Gemma2Config(
        **sizes,
        rotary_base=base,
        rotary_scaling=scaling,
        attention_divisor=fields.number("query_pre_attn_scalar", 256),
        attention_cap=fields.optional_number("attn_logit_softcapping", 50.0),
        logits_cap=fields.optional_number("final_logit_softcapping", 30.0),
        window=fields.integer("sliding_window", 4096),
        windowed=read_layer_types(fields, sizes["num_blocks"], PATTERN),
    )
    fields.finish()
    return config


def _read_gguf(checkpoint: Checkpoint) -> Gemma2Config:
    fields = open_gguf_fields(checkpoint)
    sizes = read_gguf_sizes(fields, checkpoint)
    base, scaling = read_gguf_rotary(fields, checkpoint, sizes["head_dim"], sizes["max_positions"])
    config = Gemma2Config(
        **sizes,
        rotary_base=base,
        rotary_scaling=scaling,
        attention_divisor=gguf_attention_divisor(sizes, LARGEST),
        attention_cap=fields.number("attn_logit_softcapping", 50.0),
        logits_cap=fields.number("final_logit_softcapping", 30.0),
        window=fields.integer("attention.sliding_window", 4096),
        windowed=read_layer_types(fields, sizes["num_blocks"], PATTERN),
    )
    fields.finish()
    return config


def write(config: Gemma2Config) -> Mapping[str, object]:
    """The content of `config.json`, as transformers 4 and 5 read it."""
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        **write_sizes(config),
        **write_rotary(config.rotary_base, config.rotary_scaling),
        "query_pre_attn_scalar": whole(config.attention_divisor),
        "attn_logit_softcapping": config.attention_cap,
        "final_logit_softcapping": config.logits_cap,
        "sliding_window": config.window,
        "layer_types": write_layer_types(config.windowed),
    }


GEMMA2 = Family("Gemma 2", ("gemma2",), ("gemma2",), read, write, build, names, with_blocks)
