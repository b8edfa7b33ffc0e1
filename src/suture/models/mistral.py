"""The Mistral family: Llama whose attention sees a window of tokens.

Source: https://arxiv.org/abs/2310.06825.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from suture.models import llama
from suture.models.family import Family
from suture.models.llama import LlamaConfig
from suture.weights.checkpoint import Checkpoint
from suture.weights.fields import Fields

DEFAULT_WINDOW = 4096
"""Of configurations that do not mention it; those of models without a window say null."""


def read(checkpoint: Checkpoint) -> LlamaConfig:
    """The configuration of a folder. GGUF files of Mistral say that they are of Llama, without a window.

    Raises:
        CheckpointError: A field is missing, wrong, or not understood.
    """
    fields = Fields(checkpoint.metadata, f"{checkpoint.path / 'config.json'}")
    config = replace(
        llama.read_fields(fields), window=fields.optional_integer("sliding_window", default=DEFAULT_WINDOW)
    )
    fields.finish()
    return config


def write(config: LlamaConfig) -> Mapping[str, object]:
    """The content of `config.json`, as transformers 4 and 5 read it."""
    return {
        **llama.write(config),
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": config.window,
    }


MISTRAL = Family("Mistral", ("mistral",), (), read, write, llama.build, llama.names)
