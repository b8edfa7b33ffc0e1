"""Pretrained decoders: loaded from a checkpoint, saved as a folder that transformers reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from suture import layers as sl
from suture.models.backbone import Backbone
from suture.models.block import TransformerBlock
from suture.models.family import DecoderConfig, Family
from suture.models.likeness import standings, unlike
from suture.models.registry import family_of
from suture.weights import loading
from suture.weights.checkpoint import CheckpointError
from suture.weights.saving import save_folder, special_id_fields
from suture.weights.sources import open_checkpoint
from suture.weights.tokenizer_folder import read_folder_special_ids, read_folder_vocabulary
from suture.weights.tokenizer_gguf import read_gguf_vocabulary
from suture.weights.vocabulary import SpecialIds, Vocabulary

SHOWN = 4
"""How many differences an error names."""


@dataclass(frozen=True)
class Description:
    """What is known of a pretrained model besides its tree: what saving it again needs.

    Attributes:
        family: Its family.
        config: Its configuration, as loaded.
        special_ids: The ids that start, end and pad a text.
        vocabulary: Its tokenizer and what belongs to it; None where the checkpoint has none.
    """

    family: Family
    config: DecoderConfig
    special_ids: SpecialIds
    vocabulary: Vocabulary | None


@dataclass(frozen=True)
class LoadedModel:
    """A pretrained model: its tree in two parts, in eval mode, and its description.

    Attributes:
        backbone: Token ids (B, T) to hidden states (B, T, D).
        head: Hidden states to logits (B, T, V): a linear layer, or a chain that begins with one, `projection`. Its
            weight is the embedding's where the checkpoint ties them.
        description: The rest.
    """

    backbone: Backbone
    head: nn.Module
    description: Description


def load(
    source: str | PathLike[str], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> LoadedModel:
    """Load a pretrained decoder.

    Each weight is read straight into its place in `dtype` on `device`: there is no second copy of the model in memory.

    Args:
        source: An alias (`smollm2`), a folder as transformers saves it, a `.gguf` file, or a hub id.
        dtype: The dtype of all weights.
        device: The device of all weights.

    Raises:
        TypeError: `dtype` is not a floating-point dtype.
        MissingFileError: The model, or a file of it, is not found.
        CheckpointError: Its family or a field of its configuration is not known, its weights do not fit its
            configuration, or a file is damaged.

    >>> model = load("smollm2", dtype=torch.bfloat16)
    >>> len(model.backbone.blocks), model.head.weight.dtype, model.description.special_ids.eos_ids
    (30, torch.bfloat16, (2,))
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"dtype is {dtype!r}, but the weights of a model are floating-point numbers, such as torch.bfloat16."
        )
    checkpoint = open_checkpoint(source)
    family = family_of(checkpoint)
    config = family.read(checkpoint)
    if config.num_blocks > len(checkpoint.tensors):  # building them could take longer than anyone waits
        raise CheckpointError(
            f"{checkpoint.path} describes {config.num_blocks} blocks, but holds {len(checkpoint.tensors)} tensors in "
            "all. Check that the configuration and the weights belong together."
        )
    if checkpoint.format == "gguf":
        vocabulary: Vocabulary | None = read_gguf_vocabulary(checkpoint)
    else:
        vocabulary = read_folder_vocabulary(checkpoint)
    special_ids = read_folder_special_ids(checkpoint) if vocabulary is None else vocabulary.special_ids
    with loading.without_values():
        backbone, head = family.build(config)
    modules: dict[str, nn.Module] = {"backbone": backbone, "head": head}
    loading.load(checkpoint, family.names(config, checkpoint.format), modules, dtype, device)
    return LoadedModel(backbone.eval(), head.eval(), Description(family, config, special_ids, vocabulary))


def save(
    folder: str | PathLike[str],
    backbone: nn.Module,
    head: nn.Module,
    description: Description,
    max_shard_size: int | str = "5GB",
) -> None:
    """Save a decoder as a folder that transformers loads with equal logits.

    The tree may have lost or repeated blocks since it was loaded: they are numbered as they are wired. Whether the head
    is tied is seen from the tensors, and tied weights are written once.

    Args:
        folder: Made where it does not exist; files of an earlier model in it are replaced.
        backbone: The backbone, of the family that the description names.
        head: The head.
        description: As the model was loaded with.
        max_shard_size: The size above which the weights are spread over several files, in bytes or as `5GB`.

    Raises:
        CheckpointError: The tree has layers that the family has not, or other ones; the error names them, and nothing
            is written.

    >>> import tempfile
    >>> from suture.models.llama import LLAMA, LlamaConfig
    >>> config = LlamaConfig(320, 32, 64, 2, 4, 2, 8, 128, 1e-5, 1e4, None, False, False, tied=True)
    >>> backbone, head = LLAMA.build(config)
    >>> _ = backbone.blocks.pop(0)
    >>> with tempfile.TemporaryDirectory() as name:
    ...     save(name, backbone, head, Description(LLAMA, config, SpecialIds(), None))
    ...     len(load(name).backbone.blocks)
    1
    """
    family, config = description.family, _config_of(backbone, head, description)
    with loading.without_values():
        reference = family.build(config)
    differences = unlike((backbone, head), reference)
    more = len(differences) - SHOWN
    if differences:
        raise CheckpointError(
            f"The model is no longer a {family.name}, so transformers could not load it and it was not saved: "
            f"{'; '.join(differences[:SHOWN])}{f'; and {more} more' if more > 0 else ''}. Take these edits out first "
            f"(edit.undo(), adapter.eject()). The weights of adapters are in state_dict(), beside those of the model."
        )
    tensors = _stored_tensors(backbone, head, family, config)
    content = {
        **family.write(config),
        "torch_dtype": str(next(iter(tensors.values())).dtype).removeprefix("torch."),
        **special_id_fields(description.special_ids),
    }
    save_folder(
        Path(folder).expanduser(), content, tensors, description.vocabulary, description.special_ids, max_shard_size
    )


def _config_of(backbone: nn.Module, head: nn.Module, description: Description) -> DecoderConfig:
    """The configuration as the tree is now."""
    try:
        if not isinstance(backbone, sl.Composite):
            raise TypeError(f"it is a {type(backbone).__name__} and no tree")
        blocks, embedding = backbone.layer("blocks", sl.Stack), backbone.layer("embedding", nn.Embedding)
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"The backbone is not that of a {description.family.name}, so it was not saved as one: {error.args[0]}"
        ) from error
    config: Any = description.family.with_blocks(
        description.config, [layer for layer in blocks if isinstance(layer, TransformerBlock)]
    )
    tied = any(parameter is embedding.weight for parameter in head.parameters())
    return replace(config, vocabulary_size=embedding.weight.shape[0], tied=tied)


def _stored_tensors(
    backbone: nn.Module, head: nn.Module, family: Family, config: DecoderConfig
) -> dict[str, torch.Tensor]:
    table = family.names(config, "transformers")
    own: dict[str, torch.Tensor] = {}
    for standing in standings(backbone, head):
        in_tied_head = config.tied and standing.key.partition(".")[0] == "head"
        if not isinstance(standing.layer, sl.Composite) and not in_tied_head:
            own |= {f"{standing.key}.{name}": tensor for name, tensor in standing.layer.state_dict().items()}
    tensors: dict[str, torch.Tensor] = {}
    for key in own:
        translated = table.to_stored(key)
        if translated is None:
            raise CheckpointError(f"The name table of {family.name} has no name for {key}.")
        stored, rule = translated
        if stored not in tensors:
            keys, _ = table.to_tree(stored) or ((), rule)
            tensors[stored] = rule.stored_values([own[key] for key in keys])
    return tensors
