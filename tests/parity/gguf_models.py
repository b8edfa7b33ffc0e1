"""Transformers folders written as GGUF files, the way llama.cpp's converter does it, by gguf's own table of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import torch

from suture.weights.folder import open_folder
from tests.weights.gguf_files import F32, Array, write_gguf

TRANSPOSED = ("attn.c_attn.weight", "c_proj.weight", "c_fc.weight")


def convert(folder: Path, path: Path, architecture: str, **changes: object) -> Path:
    """Writes the model of `folder` to `path`; `changes` are keys without the architecture, with `__` for a point."""
    checkpoint = open_folder(folder)
    settings: Any = checkpoint.metadata
    blocks = settings.get("num_hidden_layers") or settings["n_layer"]
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, blocks)
    tensors: dict[str, tuple[Array, Any]] = {}
    for name, stored in checkpoint.tensors.items():
        values = torch.empty(stored.shape)
        stored.copy_to(values)
        array = cast("Array", values.numpy())
        if architecture == "gpt2" and name.endswith(TRANSPOSED):
            array = np.ascontiguousarray(array.T)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            array = array + 1
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new is not None
        tensors[new] = (array, F32)
    fields = metadata(settings) | {key.replace("__", "."): value for key, value in changes.items()}
    told: dict[str, object] = {f"{architecture}.{key}": value for key, value in fields.items() if value is not None}
    pieces = ["a", "b", "ab", *(chr(0x100 + index) for index in range(3, settings["vocab_size"]))]
    told |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": pieces}
    return write_gguf(path, tensors, told | {"tokenizer.ggml.merges": ["a b"]}, architecture)


def metadata(settings: dict[str, Any]) -> dict[str, object]:
    if settings["model_type"] == "gpt2":
        return {
            "block_count": settings["n_layer"],
            "context_length": settings["n_positions"],
            "embedding_length": settings["n_embd"],
            "feed_forward_length": 4 * settings["n_embd"],
            "attention.head_count": settings["n_head"],
            "attention.layer_norm_epsilon": settings["layer_norm_epsilon"],
        }
    rotary = settings["rope_parameters"]
    return {
        "block_count": settings["num_hidden_layers"],
        "context_length": settings["max_position_embeddings"],
        "embedding_length": settings["hidden_size"],
        "feed_forward_length": settings["intermediate_size"],
        "attention.head_count": settings["num_attention_heads"],
        "attention.head_count_kv": settings["num_key_value_heads"],
        "attention.key_length": settings["head_dim"],
        "attention.value_length": settings["head_dim"],
        "attention.layer_norm_rms_epsilon": settings["rms_norm_eps"],
        "attention.sliding_window": settings.get("sliding_window"),
        "attn_logit_softcapping": settings.get("attn_logit_softcapping"),
        "final_logit_softcapping": settings.get("final_logit_softcapping"),
        "rope.freq_base": rotary.get("full_attention", rotary)["rope_theta"],
    }
