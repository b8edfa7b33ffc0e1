"""Which family a checkpoint is of."""

from __future__ import annotations

from suture.models.family import Family
from suture.models.gemma import GEMMA
from suture.models.gemma2 import GEMMA2
from suture.models.gemma3 import GEMMA3
from suture.models.gpt2 import GPT2
from suture.models.llama import LLAMA
from suture.models.mistral import MISTRAL
from suture.weights.checkpoint import Checkpoint, CheckpointError

FAMILIES: tuple[Family, ...] = (GEMMA, GEMMA2, GEMMA3, GPT2, LLAMA, MISTRAL)


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of a checkpoint.

    Raises:
        CheckpointError: It is of none that is known.

    >>> from pathlib import Path
    >>> family_of(Checkpoint(Path("folder"), "transformers", "llama", metadata={}, tensors={})).name
    'Llama'
    """
    known: dict[str, Family] = {}
    for family in FAMILIES:
        kinds = family.gguf_architectures if checkpoint.format == "gguf" else family.model_types
        known |= dict.fromkeys(kinds, family)
    if checkpoint.architecture not in known:
        key = "general.architecture" if checkpoint.format == "gguf" else "model_type"
        raise CheckpointError(
            f"{checkpoint.path} holds a model of the architecture {checkpoint.architecture!r} ({key}), which is not "
            f"supported. Supported are: {', '.join(sorted(known))}. "
            "A model of another family can be written as a tree of suture.layers and its weights loaded by hand."
        )
    return known[checkpoint.architecture]
