"""The Llama family: rotary attention with grouped queries, gated feed-forward, root mean square norms.

Source: https://arxiv.org/abs/2302.13971; grouped queries: https://arxiv.org/abs/2307.09288.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from suture import layers as sl
from suture.layers.rotary import RotaryScaling
from suture.models.backbone import Backbone, TokenEmbedding
from suture.models.block import TransformerBlock
from suture.models.block_names import BLOCK, TRANSFORMERS_IGNORED, gguf_rules, transformers_rules
from suture.models.family import BOOKKEEPING, Family
from suture.models.rotary_settings import GGUF_FACTORS, read_gguf_rotary, read_rotary, write_rotary
from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.fields import Fields
from suture.weights.names import Layout, NameTable, Rule


@dataclass(frozen=True)
class LlamaConfig:
    """The numbers that make one Llama. Widths are numbers of elements, `norm_epsilon` is added to a mean square.

    Attention sees the last `window` tokens, which Llama itself has no use for, None for all.
    """

    vocabulary_size: int
    embedding_dim: int
    feedforward_dim: int
    num_blocks: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    max_positions: int
    norm_epsilon: float
    rotary_base: float
    rotary_scaling: RotaryScaling | None
    attention_bias: bool
    feedforward_bias: bool
    tied: bool
    window: int | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"The configuration has {self.num_heads} query heads and {self.num_key_value_heads} key heads, but "
                "each key head serves equally many query heads. Correct one of the two."
            )
        if self.head_dim % 2:
            raise CheckpointError(
                f"The configuration has heads of width {self.head_dim}, but rotary position embedding turns pairs of "
                "elements, so the width is even. Correct head_dim, or the width of the model or its number of heads."
            )


def build(config: LlamaConfig) -> tuple[Backbone, sl.Linear]:
    """The tree: a backbone from token ids (B, T) to hidden states (B, T, D), and a head to logits (B, T, V).

    >>> config = LlamaConfig(320, 32, 64, 2, 4, 2, 8, 128, 1e-5, 1e4, None, False, False, tied=True)
    >>> backbone, head = build(config)
    >>> head.weight is backbone.layer("embedding").weight, len(backbone.blocks)
    (True, 2)
    """
    backbone = Backbone(
        embedding=TokenEmbedding(config.vocabulary_size, config.embedding_dim),
        blocks=sl.Stack(*(block(config) for _ in range(config.num_blocks))),
        norm=sl.RMSNorm(config.embedding_dim, eps=config.norm_epsilon),
        max_positions=config.max_positions,
    )
    head = sl.Linear(config.embedding_dim, config.vocabulary_size, bias=False)
    if config.tied:
        head.weight = backbone.layer("embedding", TokenEmbedding).weight
    return backbone, head


def block(config: LlamaConfig) -> TransformerBlock:
    """One block of the tree."""
    return TransformerBlock(
        attention=sl.Residual(
            norm=sl.RMSNorm(config.embedding_dim, eps=config.norm_epsilon),
            heads=sl.SelfAttention(
                config.embedding_dim,
                num_heads=config.num_heads,
                num_key_value_heads=config.num_key_value_heads,
                head_dim=config.head_dim,
                bias=config.attention_bias,
                causal=True,
                rotary=sl.Rotary(config.head_dim, base=config.rotary_base, scaling=config.rotary_scaling),
                attend=sl.ScaledDotProductAttention(causal=True, window=config.window),
            ),
        ),
        feedforward=sl.Residual(
            norm=sl.RMSNorm(config.embedding_dim, eps=config.norm_epsilon),
            gated=sl.GatedFeedForward(config.embedding_dim, config.feedforward_dim, bias=config.feedforward_bias),
        ),
    )


def names(config: LlamaConfig, format: Literal["transformers", "gguf"]) -> NameTable:  # noqa: A002 (what it is called)
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
            *gguf_rules(query_and_key=paired_rows(config.head_dim)),
            Rule("blk.#.attn_norm", f"{BLOCK}.attention.norm"),
            Rule("blk.#.ffn_norm", f"{BLOCK}.feedforward.norm"),
            Rule("output_norm", "backbone.norm"),
        ),
        ignored=(GGUF_FACTORS,),  # read with the configuration, as the rotary scaling
    )


def paired_rows(head_dim: int) -> Layout:
    """The layout of GGUF's query and key: the two rows that rotary turns together stand side by side in each head.

    In the tree they are half a head apart.

    >>> import torch
    >>> paired_rows(4)(torch.arange(8)).flatten().tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """

    def layout(tensor: Tensor) -> Tensor:
        return tensor.view(tensor.shape[0] // head_dim, 2, head_dim // 2, *tensor.shape[1:]).transpose(1, 2)

    return layout


def read(checkpoint: Checkpoint) -> LlamaConfig:
    """The configuration of a checkpoint.

    Raises:
        CheckpointError: A field is missing, wrong, or not understood.
    """
    return _read_gguf(checkpoint) if checkpoint.format == "gguf" else _read_transformers(checkpoint)


def _read_transformers(checkpoint: Checkpoint) -> LlamaConfig:
    fields = Fields(checkpoint.metadata, f"{checkpoint.path / 'config.json'}")
    fields.ignore(["is_llama_config"])
    config = read_fields(fields)
    fields.finish()
    return config


def read_fields(fields: Fields) -> LlamaConfig:
    """What the fields of a `config.json` say that Llama and its kin have."""
    fields.ignore(BOOKKEEPING)
    fields.only("hidden_act", "silu", "swish")
    fields.only("attention_dropout", 0)
    fields.only("pretraining_tp", 1)
    fields.only("rope_interleaved", False)
    heads, width = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    max_positions = fields.integer("max_position_embeddings")
    base, scaling = read_rotary(fields, max_positions)
    return LlamaConfig(
        vocabulary_size=fields.integer("vocab_size"),
        embedding_dim=width,
        feedforward_dim=fields.integer("intermediate_size"),
        num_blocks=fields.integer("num_hidden_layers", least=0),
        num_heads=heads,
        num_key_value_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", width // heads),
        max_positions=max_positions,
        norm_epsilon=fields.number("rms_norm_eps", 1e-6),
        rotary_base=base,
        rotary_scaling=scaling,
        attention_bias=fields.flag("attention_bias", False),
        feedforward_bias=fields.flag("mlp_bias", False),
        tied=fields.flag("tie_word_embeddings", False),
    )


def write(config: LlamaConfig) -> Mapping[str, object]:
    """The content of `config.json`, as transformers 4 and 5 read it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.embedding_dim,
        "intermediate_size": config.feedforward_dim,
        "num_hidden_layers": config.num_blocks,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_epsilon,
        **write_rotary(config.rotary_base, config.rotary_scaling),
        "attention_bias": config.attention_bias,
        "mlp_bias": config.feedforward_bias,
        "tie_word_embeddings": config.tied,
    }


def _read_gguf(checkpoint: Checkpoint) -> LlamaConfig:
    prefix = f"{checkpoint.architecture}."
    values = {key.removeprefix(prefix): value for key, value in checkpoint.metadata.items() if key.startswith(prefix)}
    fields = Fields(values, f"{checkpoint.path}, keys of {checkpoint.architecture}")
    fields.ignore(["tensor_data_layout"])
    fields.only("expert_count", 0)
    fields.only("expert_used_count", 0)
    heads, width = fields.integer("attention.head_count"), fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", width // heads)
    fields.only("attention.value_length", head_dim)
    max_positions = fields.integer("context_length")
    base, scaling = read_gguf_rotary(fields, checkpoint, head_dim, max_positions)
    embedding = checkpoint.tensors.get("token_embd.weight")
    config = LlamaConfig(
        vocabulary_size=fields.integer("vocab_size", embedding.shape[0] if embedding else None),
        embedding_dim=width,
        feedforward_dim=fields.integer("feed_forward_length"),
        num_blocks=fields.integer("block_count", least=0),
        num_heads=heads,
        num_key_value_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_positions=max_positions,
        norm_epsilon=fields.number("attention.layer_norm_rms_epsilon"),
        rotary_base=base,
        rotary_scaling=scaling,
        attention_bias="blk.0.attn_q.bias" in checkpoint.tensors,
        feedforward_bias="blk.0.ffn_up.bias" in checkpoint.tensors,
        tied="output.weight" not in checkpoint.tensors,
    )
    fields.finish()
    return config


LLAMA = Family("Llama", ("llama",), ("llama",), read, write, build, names)
