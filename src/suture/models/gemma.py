"""The first Gemma family: like Llama, with scaled embeddings, norms around one, GELU gates and wide heads.

Source: https://arxiv.org/abs/2403.08295.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from suture import layers as sl
from suture.layers.rotary import RotaryScaling
from suture.models.backbone import Backbone
from suture.models.block import TransformerBlock
from suture.models.block_names import BLOCK, TRANSFORMERS_IGNORED, gguf_rules, transformers_rules
from suture.models.family import Family
from suture.models.gemma_parts import (
    ScaledTokenEmbedding,
    ZeroCentredRMSNorm,
    gated_feedforward,
    self_attention,
    tied_head,
)
from suture.models.gemma_settings import (
    GemmaSizes,
    open_fields,
    open_gguf_fields,
    read_gguf_sizes,
    read_sizes,
    write_sizes,
)
from suture.models.rotary_settings import read_gguf_rotary, read_rotary, write_rotary
from suture.weights.checkpoint import Checkpoint
from suture.weights.names import NameTable, Rule


@dataclass(frozen=True, kw_only=True)
class GemmaConfig(GemmaSizes):
    """The numbers that make one Gemma of the first family."""

    rotary_base: float
    rotary_scaling: RotaryScaling | None


def build(config: GemmaConfig) -> tuple[Backbone, sl.Linear]:
    """The tree: a backbone from token ids (B, T) to hidden states (B, T, D), and a head to logits (B, T, V)."""
    embedding = ScaledTokenEmbedding(config.vocabulary_size, config.embedding_dim)
    backbone = Backbone(
        embedding=embedding,
        blocks=sl.Stack(*(block(config) for _ in range(config.num_blocks))),
        norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
        max_positions=config.max_positions,
    )
    return backbone, tied_head(embedding, config.tied)


def block(config: GemmaConfig) -> TransformerBlock:
    """One block of the tree."""
    return TransformerBlock(
        attention=sl.Residual(
            norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
            heads=self_attention(
                config, rotary=sl.Rotary(config.head_dim, base=config.rotary_base, scaling=config.rotary_scaling)
            ),
        ),
        feedforward=sl.Residual(
            norm=ZeroCentredRMSNorm(config.embedding_dim, eps=config.norm_epsilon),
            gated=gated_feedforward(config.embedding_dim, config.feedforward_dim),
        ),
    )


def names(config: GemmaConfig, format: Literal["transformers", "gguf"]) -> NameTable:  # noqa: A002 (what it is called)
    """The name table of a format."""
    if format == "transformers":
        return NameTable(
            (
                *transformers_rules(),
                Rule("model.layers.#.input_layernorm", f"{BLOCK}.attention.norm"),
                Rule("model.layers.#.post_attention_layernorm", f"{BLOCK}.feedforward.norm"),
            ),
            ignored=TRANSFORMERS_IGNORED,
        )
    return NameTable(
        (
            *gguf_rules(),
            Rule("blk.#.attn_norm", f"{BLOCK}.attention.norm", added=1.0),
            Rule("blk.#.ffn_norm", f"{BLOCK}.feedforward.norm", added=1.0),
            Rule("output_norm", "backbone.norm", added=1.0),
        )
    )


def read(checkpoint: Checkpoint) -> GemmaConfig:
    """The configuration of a checkpoint.

    Raises:
        CheckpointError: A field is missing, wrong, or not understood.
    """
    return _read_gguf(checkpoint) if checkpoint.format == "gguf" else _read_transformers(checkpoint)


def _read_transformers(checkpoint: Checkpoint) -> GemmaConfig:
    fields = open_fields(checkpoint)
    fields.only("hidden_act", "gelu", "gelu_pytorch_tanh")  # the first checkpoints say gelu, and mean its tanh form
    sizes = read_sizes(fields)
    base, scaling = read_rotary(fields, sizes["max_positions"])
    fields.finish()
    return GemmaConfig(**sizes, rotary_base=base, rotary_scaling=scaling)


def _read_gguf(checkpoint: Checkpoint) -> GemmaConfig:
    fields = open_gguf_fields(checkpoint)
    sizes = read_gguf_sizes(fields, checkpoint)
    base, scaling = read_gguf_rotary(fields, checkpoint, sizes["head_dim"], sizes["max_positions"])
    fields.finish()
    return GemmaConfig(**sizes, rotary_base=base, rotary_scaling=scaling)


def write(config: GemmaConfig) -> Mapping[str, object]:
    """The content of `config.json`, as transformers 4 and 5 read it."""
    return {
        "architectures": ["GemmaForCausalLM"],
        "model_type": "gemma",
        "hidden_act": "gelu_pytorch_tanh",
        **write_sizes(config),
        **write_rotary(config.rotary_base, config.rotary_scaling),
    }


GEMMA = Family("Gemma", ("gemma",), ("gemma",), read, write, build, names)
