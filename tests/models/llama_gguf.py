"""A Llama folder written as a GGUF file, the way llama.cpp's converter does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType

from suture.models.llama import LlamaConfig
from suture.weights.folder import open_folder
from tests.weights.gguf_files import F32, Array, write_gguf

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def metadata(config: LlamaConfig, pieces: int = 320) -> dict[str, object]:
    return {
        "llama.block_count": config.num_blocks,
        "llama.context_length": config.max_positions,
        "llama.embedding_length": config.embedding_dim,
        "llama.feed_forward_length": config.feedforward_dim,
        "llama.attention.head_count": config.num_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.norm_epsilon,
        "llama.rope.freq_base": config.rotary_base,
        "llama.rope.dimension_count": config.head_dim,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.value_length": config.head_dim,
        "llama.vocab_size": config.vocabulary_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", *(chr(0x100 + index) for index in range(3, pieces))],
        "tokenizer.ggml.merges": ["a b"],
    }


def paired(values: Array, head_dim: int) -> Array:
    """The rows i and i + head_dim / 2 of each head, side by side."""
    heads = np.split(values, values.shape[0] // head_dim)
    half = head_dim // 2
    order = [row for pair in range(half) for row in (pair, pair + half)]
    return np.concatenate([head[order] for head in heads])


def convert(folder: Path, path: Path, config: LlamaConfig, kind: GGMLQuantizationType = F32, **changes: object) -> Path:
    """Write the weights of `folder` to `path`, matrices as `kind`; `changes` are metadata with `__` for a point."""
    tensors: dict[str, tuple[Array, GGMLQuantizationType]] = {}
    for name, stored in open_folder(folder).tensors.items():
        place = torch.empty(stored.shape)
        stored.copy_to(place)
        values = place.numpy()
        layer, _, parameter = name.rpartition(".")
        if layer.startswith("model.layers."):
            number, _, layer = layer.removeprefix("model.layers.").partition(".")
            prefix = f"blk.{number}."
        else:
            prefix = ""
        if layer in ("self_attn.q_proj", "self_attn.k_proj"):
            values = paired(values, config.head_dim)
        tensors[f"{prefix}{NAMES[layer]}.{parameter}"] = (values, kind if values.ndim == 2 else F32)
    fields = metadata(config) | {key.replace("__", "."): value for key, value in changes.items()}
    return write_gguf(path, tensors, {key: value for key, value in fields.items() if value is not None})
