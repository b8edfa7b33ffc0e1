"""The Gemma 3 family, text: as Gemma 2, with normalised queries and keys in place of capped scores, and two rotaries.

Blocks with a window turn by a rotary of their own; of six blocks five have one.

Source: https://arxiv.org/abs/2503.19786.
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
from suture.models.block_names import BLOCK, TRANSFORMERS_IGNORED, gguf_rules, transformers_rules
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
from suture.models.rotary_settings import DEFAULT_BASE, read_gguf_rotary, read_rotary_of_two_kinds, write_rotary
from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.names import NameTable, Rule

PATTERN = 6
"""Every sixth block has no window."""

LARGEST = 62
"""Blocks of the largest model."""

HEAD_NORMS = f"{BLOCK}.attention.heads.norms"


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(GemmaSizes):
    """The numbers that make one Gemma 3.

    Attention scores are divided by the root of `attention_divisor`. The attention of the blocks that `windowed` says
    sees the last `window` tokens, and its rotary has the base `window_rotary_base` and no scaling. A cap of None is
    none.
    """

    rotary_base: float
    rotary_scaling: RotaryScaling | None
    window_rotary_base: float
    attention_divisor: float
    logits_cap: float | None
    window: int
    windowed: tuple[bool, ...]


def build(config: Gemma3Config) -> tuple[Backbone, nn.Module]:
    """The tree: a backbone from token ids (B, T) to hidden states (B, T, D), and a head to logits (B, T, V).

    Where logits are capped, the head is a chain of `projection` and `cap`.
    """
    embedding = ScaledTokenEmbedding(config.vocabulary_size, config.embedding_dim)
    backbone = Backbone(
        embedding=embedding,
        blocks=sl.Stack(*(block(config, has_window) for has_window in config.windowed)),
        norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
        max_positions=config.max_positions,
    )
    return backbone, capped_head(embedding, config.tied, config.logits_cap)


def block(config: Gemma3Config, has_window: bool) -> TransformerBlock:
    """One block of the tree."""
    if has_window:
        window, rotary = config.window, sl.Rotary(config.head_dim, base=config.window_rotary_base)
    else:
        window, rotary = None, sl.Rotary(config.head_dim, base=config.rotary_base, scaling=config.rotary_scaling)
    return TransformerBlock(
        attention=sl.Residual(
            norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
            heads=self_attention(
                config,
                norms=sl.Distribute(
                    query_norm=ZeroCentredRMSNorm(config.head_dim, eps=config.norm_epsilon),
                    key_norm=ZeroCentredRMSNorm(config.head_dim, eps=config.norm_epsilon),
                    value_as_it_is=sl.Identity(),
                ),
                rotary=rotary,
                attend=sl.ScaledDotProductAttention(causal=True, scale=config.attention_divisor**-0.5, window=window),
            ),
            post_norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
        ),
        feedforward=sl.Residual(
            norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
            gated=gated_feedforward(config.embedding_dim, config.feedforward_dim),
            post_norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
        ),
    )


def with_blocks(config: Gemma3Config, blocks: Sequence[nn.Module]) -> Gemma3Config:
    """The configuration of a model of these blocks."""
    return replace(config, num_blocks=len(blocks), windowed=windowed(blocks))


def names(config: Gemma3Config, format: Literal["transformers", "gguf"]) -> NameTable:  # noqa: A002 (what it is called)
    """The name table of a format."""
    head = head_path(config.logits_cap)
    if format == "transformers":
        return NameTable(
            (
                *transformers_rules(head),
                *TRANSFORMERS_NORMS,
                Rule("model.layers.#.self_attn.q_norm", f"{HEAD_NORMS}.query_norm"),
                Rule("model.layers.#.self_attn.k_norm", f"{HEAD_NORMS}.key_norm"),
            ),
            ignored=TRANSFORMERS_IGNORED,
        )
    return NameTable(
        (
            *gguf_rules(head=head),
            *GGUF_NORMS,
            Rule("blk.#.attn_q_norm", f"{HEAD_NORMS}.query_norm", added=1.0),
            Rule("blk.#.attn_k_norm", f"{HEAD_NORMS}.key_norm", added=1.0),
        )
    )


def read(checkpoint: Checkpoint) -> Gemma3Config:
    """The configuration of a checkpoint.

    Raises:
        CheckpointError: A field is missing, wrong, or not understood.
    """
    return _read_gguf(checkpoint) if checkpoint.format == "gguf" else _read_transformers(checkpoint)


def _read_transformers(checkpoint: Checkpoint) -> Gemma3Config:
    fields = open_fields(checkpoint)
    fields.only("hidden_act", "gelu_pytorch_tanh")
    fields.only("attn_logit_softcapping")  # transformers has the field and passes over it
    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", PATTERN))
    sizes = read_sizes(fields)
    (base, scaling), (window_base, window_scaling) = read_rotary_of_two_kinds(fields, sizes["max_positions"])
    if window_scaling is not None:
        raise CheckpointError(
            f"{fields.where}: the rotary of sliding attention is scaled, {window_scaling}, which is not understood; "
            "that of full attention may be. The model would compute something else, so it is not loaded."
        )
    config = Gemma3Config(
        **sizes,
        rotary_base=base,
        rotary_scaling=scaling,
        window_rotary_base=window_base,
        attention_divisor=fields.number("query_pre_attn_scalar", 256),
        logits_cap=fields.optional_number("final_logit_softcapping", None),
        window=fields.integer("sliding_window", 4096),
        windowed=read_layer_types(fields, sizes["num_blocks"], pattern),
    )
    fields.finish()
    return config


def _read_gguf(checkpoint: Checkpoint) -> Gemma3Config:
    fields = open_gguf_fields(checkpoint)
    sizes = read_gguf_sizes(fields, checkpoint)
    base, scaling = read_gguf_rotary(fields, checkpoint, sizes["head_dim"], sizes["max_positions"])
    config = Gemma3Config(
        **sizes,
        rotary_base=base,
        rotary_scaling=scaling,
        window_rotary_base=fields.number("rope.freq_base_swa", DEFAULT_BASE),
        attention_divisor=gguf_attention_divisor(sizes, LARGEST),
        logits_cap=fields.optional_number("final_logit_softcapping", None),
        window=fields.integer("attention.sliding_window"),
        windowed=read_layer_types(fields, sizes["num_blocks"], PATTERN),
    )
    fields.finish()
    return config


def write(config: Gemma3Config) -> Mapping[str, object]:
    """The content of `config.json`, as transformers 4 and 5 read it."""
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **write_sizes(config),
        **write_rotary(config.rotary_base, config.rotary_scaling),
        "rope_local_base_freq": config.window_rotary_base,
        "query_pre_attn_scalar": whole(config.attention_divisor),
        "final_logit_softcapping": config.logits_cap,
        "sliding_window": config.window,
        "layer_types": write_layer_types(config.windowed),
    }


GEMMA3 = Family("Gemma 3", ("gemma3_text",), ("gemma3",), read, write, build, names, with_blocks)
