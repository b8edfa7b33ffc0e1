"""Writing a folder as transformers saves it: configuration, safetensors in shards, tokenizer.

What is there already is moved aside after everything new has been written beside it, and moved back where that fails:
an error or an interruption on the way leaves the folder as it was.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from suture.weights.checkpoint import CheckpointError
from suture.weights.folder import CONFIG, INDEX, WEIGHTS
from suture.weights.safe_file import without_sharing, write_tensors
from suture.weights.vocabulary import SpecialIds, Vocabulary

SHARD_PATTERN = "model{suffix}.safetensors"
STALE = frozenset(
    (
        *(WEIGHTS, INDEX, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        *("tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    )
)
"""Files that describe an earlier model, and would be read with the files of the new one where it has none."""


def save_folder(
    folder: Path,
    config: Mapping[str, object],
    tensors: Mapping[str, torch.Tensor],
    vocabulary: Vocabulary | None = None,
    special_ids: SpecialIds | None = None,
    max_shard_size: int | str = "5GB",
) -> None:
    """Write a folder that transformers loads.

    Args:
        folder: Made where it does not exist. Files of an earlier model in it are replaced, others are left alone.
        config: The content of `config.json`.
        tensors: Every stored tensor by name, as transformers names them. A tensor under two names is written twice.
        vocabulary: The tokenizer and what belongs to it; without one none is written.
        special_ids: Those of `generation_config.json`; by default the vocabulary's.
        max_shard_size: The size above which the weights are spread over several files, in bytes or as `5GB`.

    Raises:
        CheckpointError: The folder is a file, or tensors have no values.

    Example:
        >>> from suture.weights.folder import open_folder
        >>> with tempfile.TemporaryDirectory() as name:
        ...     save_folder(Path(name, "new"), {"model_type": "llama"}, {"model.norm.weight": torch.ones(4)})
        ...     list(open_folder(Path(name, "new")).tensors)
        ['model.norm.weight']
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file, so no model can be saved into it. Give a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as name:
        beside = Path(name, "new")
        beside.mkdir()
        _write_weights(beside, tensors, max_shard_size)
        _write_json(beside / "generation_config.json", _generation(vocabulary, special_ids))
        if vocabulary is not None:
            vocabulary.tokenizer.save(str(beside / "tokenizer.json"))
            _write_json(beside / "tokenizer_config.json", _settings(vocabulary))
        _write_json(beside / CONFIG, config)
        _move(beside, folder)


def _write_weights(folder: Path, tensors: Mapping[str, torch.Tensor], max_shard_size: int | str) -> None:
    from huggingface_hub import split_torch_state_dict_into_shards

    # The splitting counts tensors that share memory once, but what is wired twice is written twice.
    own = without_sharing(tensors)
    plan = split_torch_state_dict_into_shards(own, filename_pattern=SHARD_PATTERN, max_shard_size=max_shard_size)
    for file, names in plan.filename_to_tensors.items():
        write_tensors(folder / file, {name: own[name] for name in names}, {"format": "pt"})
    if plan.is_sharded:
        _write_json(folder / INDEX, {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename})


def _generation(vocabulary: Vocabulary | None, special_ids: SpecialIds | None) -> dict[str, object]:
    ids = special_ids or (vocabulary.special_ids if vocabulary else SpecialIds())
    found = dict(vocabulary.generation) if vocabulary else {}
    return found | {name: value for name, value in special_id_fields(ids).items() if value is not None}


def special_id_fields(ids: SpecialIds) -> dict[str, object]:
    """Special ids under transformers' names: one end id is a number, several are a list."""
    ends = list(ids.eos_ids)
    return {
        "bos_token_id": ids.bos_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": ids.pad_id,
    }


def _settings(vocabulary: Vocabulary) -> dict[str, object]:
    found: dict[str, object] = dict(vocabulary.settings)
    if not found:
        found = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if vocabulary.chat_template is not None:
        found["chat_template"] = vocabulary.chat_template
    return dict(vocabulary.special_tokens) | found


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _move(beside: Path, folder: Path) -> None:
    """Put the new files in place of those of an earlier model, all of them or none."""
    new = sorted(beside.iterdir(), key=lambda path: path.name == CONFIG)
    replaced = {path.name for path in new} | STALE | {path.name for path in folder.glob("model-*-of-*.safetensors")}
    old = beside.with_name("old")
    old.mkdir()
    moved: list[tuple[Path, Path]] = []
    moves = [(folder / name, old / name) for name in sorted(replaced) if os.path.lexists(folder / name)]
    try:
        for source, target in (*moves, *((path, folder / path.name) for path in new)):
            source.replace(target)
            moved.append((source, target))
    except BaseException:
        for source, target in reversed(moved):
            target.replace(source)
        raise
