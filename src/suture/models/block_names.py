"""The names that families share: those of the linear layers in a block of rotary attention and gated feed-forward."""

from __future__ import annotations

from suture.weights.names import Layout, Rule, as_is

BLOCK = "backbone.blocks.#"
PROJECTIONS = f"{BLOCK}.attention.heads.projections"
GATED = f"{BLOCK}.feedforward.gated"


def transformers_rules(head: str = "head") -> tuple[Rule, ...]:
    """The rules of a transformers folder: all layers but the norms of a block.

    Args:
        head: Where the linear layer of the head is in the tree.

    >>> [rule.layers for rule in transformers_rules() if rule.stored == "model.layers.#.mlp.down_proj"]
    ['backbone.blocks.#.feedforward.gated.down']
    """
    return (
        Rule("model.embed_tokens", "backbone.embedding"),
        Rule("model.layers.#.self_attn.q_proj", f"{PROJECTIONS}.query"),
        Rule("model.layers.#.self_attn.k_proj", f"{PROJECTIONS}.key"),
        Rule("model.layers.#.self_attn.v_proj", f"{PROJECTIONS}.value"),
        Rule("model.layers.#.self_attn.o_proj", f"{BLOCK}.attention.heads.output"),
        Rule("model.layers.#.mlp.gate_proj", f"{GATED}.branches.gated.gate"),
        Rule("model.layers.#.mlp.up_proj", f"{GATED}.branches.up"),
        Rule("model.layers.#.mlp.down_proj", f"{GATED}.down"),
        Rule("model.norm", "backbone.norm"),
        Rule("lm_head", head),
    )


TRANSFORMERS_IGNORED = ("model.layers.#.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
"""Old checkpoints carry the frequencies that the configuration already says."""


def gguf_rules(query_and_key: Layout = as_is, head: str = "head") -> tuple[Rule, ...]:
    """The rules of a GGUF file: all layers but the norms.

    Args:
        query_and_key: The layout of these two, where the format has one of its own.
        head: Where the linear layer of the head is in the tree.
    """
    return (
        Rule("token_embd", "backbone.embedding"),
        Rule("blk.#.attn_q", f"{PROJECTIONS}.query", query_and_key),
        Rule("blk.#.attn_k", f"{PROJECTIONS}.key", query_and_key),
        Rule("blk.#.attn_v", f"{PROJECTIONS}.value"),
        Rule("blk.#.attn_output", f"{BLOCK}.attention.heads.output"),
        Rule("blk.#.ffn_gate", f"{GATED}.branches.gated.gate"),
        Rule("blk.#.ffn_up", f"{GATED}.branches.up"),
        Rule("blk.#.ffn_down", f"{GATED}.down"),
        Rule("output", head),
    )
