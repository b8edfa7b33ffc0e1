"""The GPT-2 family: learned positions, layer norms, attention with as many key heads as query heads, and biases.

Checkpoints keep its linear layers transposed, and query, key and value as one; here each is a linear layer of its own.

Source: "Language Models are Unsupervised Multitask Learners",
https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from suture import layers as sl
from suture.models.backbone import Backbone, TokenEmbedding
from suture.models.block import TransformerBlock
from suture.models.family import BOOKKEEPING, Family
from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.fields import Fields
from suture.weights.names import NameTable, Rule


@dataclass(frozen=True)
class GPT2Config:
    """The numbers that make one GPT-2. Widths are numbers of elements, `norm_epsilon` is added to a variance.

    Attention scores are scaled by the square root of a head's width where `scaled_by_width`, and divided by the number
    of the block, the first being 1, where `scaled_by_block`. The activation goes by its name in transformers.
    """

    vocabulary_size: int
    embedding_dim: int
    feedforward_dim: int
    num_blocks: int
    num_heads: int
    max_positions: int
    norm_epsilon: float
    activation: str
    scaled_by_width: bool
    scaled_by_block: bool
    tied: bool

    def __post_init__(self) -> None:
        if self.embedding_dim % self.num_heads:
            raise CheckpointError(
                f"The configuration has {self.num_heads} heads, which do not divide a width of {self.embedding_dim}. "
                "Correct one of the two."
            )
        activation(self.activation)


def build(config: GPT2Config) -> tuple[Backbone, sl.Linear]:
    """The tree: a backbone from token ids (B, T) to hidden states (B, T, D), and a head to logits (B, T, V).

    >>> config = GPT2Config(320, 32, 128, 2, 4, 64, 1e-5, "gelu_new", True, False, tied=True)
    >>> backbone, head = build(config)
    >>> head.weight is backbone.layer("embedding").weight, [place.path for place in backbone.places()][:3]
    (True, ['embedding', 'positions', 'blocks'])
    """
    backbone = Backbone(
        embedding=TokenEmbedding(config.vocabulary_size, config.embedding_dim),
        positions=sl.LearnedPositions(config.max_positions, config.embedding_dim),
        blocks=sl.Stack(*(block(config, number) for number in range(config.num_blocks))),
        norm=sl.LayerNorm(config.embedding_dim, eps=config.norm_epsilon),
        max_positions=config.max_positions,
    )
    head = sl.Linear(config.embedding_dim, config.vocabulary_size, bias=False)
    if config.tied:
        head.weight = backbone.layer("embedding", TokenEmbedding).weight
    return backbone, head


def block(config: GPT2Config, number: int) -> TransformerBlock:
    """One block of the tree, counted from 0."""
    return TransformerBlock(
        attention=sl.Residual(
            norm=sl.LayerNorm(config.embedding_dim, eps=config.norm_epsilon),
            heads=sl.SelfAttention(
                config.embedding_dim,
                num_heads=config.num_heads,
                causal=True,
                attend=sl.ScaledDotProductAttention(causal=True, scale=scale(config, number)),
            ),
        ),
        feedforward=sl.Residual(
            norm=sl.LayerNorm(config.embedding_dim, eps=config.norm_epsilon),
            dense=sl.FeedForward(
                config.embedding_dim, config.feedforward_dim, activation=activation(config.activation)
            ),
        ),
    )


def scale(config: GPT2Config, number: int) -> float:
    """What attention scores are multiplied with in a block.

    >>> scale(GPT2Config(320, 32, 128, 2, 2, 64, 1e-5, "gelu_new", True, True, tied=True), number=1)
    0.125
    """
    by_width = (config.embedding_dim // config.num_heads) ** -0.5 if config.scaled_by_width else 1.0
    return by_width / (number + 1) if config.scaled_by_block else by_width


def activation(name: str) -> nn.Module:
    """The activation that goes by a name of transformers.

    Raises:
        CheckpointError: It is none of those that are known.
    """
    match name:
        case "gelu_new" | "gelu_pytorch_tanh":
            return sl.GELU(approximate="tanh")
        case "gelu":
            return sl.GELU()
        case "relu":
            return sl.ReLU()
        case "silu" | "swish":
            return sl.SiLU()
        case "tanh":
            return sl.Tanh()
        case _:
            raise CheckpointError(
                f"The activation {name!r} is not understood; gelu_new, gelu_pytorch_tanh, gelu, relu, silu, swish and "
                "tanh are. The model would compute something else without it, so it is not loaded."
            )


def names(config: GPT2Config, format: Literal["transformers", "gguf"]) -> NameTable:  # noqa: A002 (what it is called)
    """The name table of a format."""
    block, projections = "backbone.blocks.#", "backbone.blocks.#.attention.heads.projections"
    fused = (f"{projections}.query", f"{projections}.key", f"{projections}.value")
    if format == "gguf":
        return NameTable(
            (
                Rule("token_embd", "backbone.embedding"),
                Rule("position_embd", "backbone.positions"),
                Rule("blk.#.attn_norm", f"{block}.attention.norm"),
                Rule("blk.#.attn_qkv", fused),
                Rule("blk.#.attn_output", f"{block}.attention.heads.output"),
                Rule("blk.#.ffn_norm", f"{block}.feedforward.norm"),
                Rule("blk.#.ffn_up", f"{block}.feedforward.dense.up"),
                Rule("blk.#.ffn_down", f"{block}.feedforward.dense.down"),
                Rule("output_norm", "backbone.norm"),
                Rule("output", "head"),
            )
        )
    body = (
        Rule("wte", "backbone.embedding"),
        Rule("wpe", "backbone.positions"),
        Rule("h.#.ln_1", f"{block}.attention.norm"),
        Rule("h.#.attn.c_attn", fused, torch.t),
        Rule("h.#.attn.c_proj", f"{block}.attention.heads.output", torch.t),
        Rule("h.#.ln_2", f"{block}.feedforward.norm"),
        Rule("h.#.mlp.c_fc", f"{block}.feedforward.dense.up", torch.t),
        Rule("h.#.mlp.c_proj", f"{block}.feedforward.dense.down", torch.t),
        Rule("ln_f", "backbone.norm"),
    )
    of_causal_lm = (Rule(f"transformer.{rule.stored}", rule.layers, rule.layout) for rule in body)
    # The first checkpoints are of the body alone. Old ones carry the causal mask and what it is filled with.
    masks = ("h.#.attn.bias", "h.#.attn.masked_bias")
    return NameTable(
        (*of_causal_lm, Rule("lm_head", "head"), *body), ignored=(*masks, *(f"transformer.{mask}" for mask in masks))
    )


def read(checkpoint: Checkpoint) -> GPT2Config:
    """The configuration of a checkpoint.

    The probabilities of dropout are passed over: the tree has none, and where it shall have some they are put in.

    Raises:
        CheckpointError: A field is missing, wrong, or not understood.
    """
    return _read_gguf(checkpoint) if checkpoint.format == "gguf" else _read_transformers(checkpoint)


def _read_transformers(checkpoint: Checkpoint) -> GPT2Config:
    fields = Fields(checkpoint.metadata, f"{checkpoint.path / 'config.json'}")
    fields.ignore([*BOOKKEEPING, "n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop"])
    fields.ignore(["summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"])
    fields.ignore(["summary_first_dropout"])
    fields.only("reorder_and_upcast_attn", False)
    fields.only("add_cross_attention", False)
    width = fields.integer("n_embd")
    config = GPT2Config(
        vocabulary_size=fields.integer("vocab_size"),
        embedding_dim=width,
        feedforward_dim=fields.integer("n_inner", 4 * width),
        num_blocks=fields.integer("n_layer", least=0),
        num_heads=fields.integer("n_head"),
        max_positions=fields.integer("n_positions"),
        norm_epsilon=fields.number("layer_norm_epsilon", 1e-5),
        activation=fields.text("activation_function", "gelu_new"),
        scaled_by_width=fields.flag("scale_attn_weights", True),
        scaled_by_block=fields.flag("scale_attn_by_inverse_layer_idx", False),
        tied=fields.flag("tie_word_embeddings", True),
    )
    fields.finish()
    return config


def write(config: GPT2Config) -> Mapping[str, object]:
    """The content of `config.json`, as transformers 4 and 5 read it."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocabulary_size,
        "n_embd": config.embedding_dim,
        "n_inner": config.feedforward_dim,
        "n_layer": config.num_blocks,
        "n_head": config.num_heads,
        "n_positions": config.max_positions,
        "layer_norm_epsilon": config.norm_epsilon,
        "activation_function": config.activation,
        "scale_attn_weights": config.scaled_by_width,
        "scale_attn_by_inverse_layer_idx": config.scaled_by_block,
        "tie_word_embeddings": config.tied,
    }


def _read_gguf(checkpoint: Checkpoint) -> GPT2Config:
    values = {key.removeprefix("gpt2."): value for key, value in checkpoint.metadata.items() if key.startswith("gpt2.")}
    fields = Fields(values, f"{checkpoint.path}, keys of gpt2")
    fields.ignore(["tensor_data_layout"])
    width = fields.integer("embedding_length")
    embedding = checkpoint.tensors.get("token_embd.weight")
    config = GPT2Config(
        vocabulary_size=fields.integer("vocab_size", embedding.shape[0] if embedding else None),
        embedding_dim=width,
        feedforward_dim=fields.integer("feed_forward_length", 4 * width),
        num_blocks=fields.integer("block_count", least=0),
        num_heads=fields.integer("attention.head_count"),
        max_positions=fields.integer("context_length"),
        norm_epsilon=fields.number("attention.layer_norm_epsilon"),
        activation="gelu_new",
        scaled_by_width=True,
        scaled_by_block=False,
        tied="output.weight" not in checkpoint.tensors,
    )
    fields.finish()
    return config


GPT2 = Family("GPT-2", ("gpt2",), ("gpt2",), read, write, build, names)
