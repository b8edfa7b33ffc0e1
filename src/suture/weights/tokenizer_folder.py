"""The tokenizer of a transformers folder: `tokenizer.json` and what the files beside it say about special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.folder import read_json, read_text
from suture.weights.tokenizer_gguf import frame_text
from suture.weights.vocabulary import SpecialIds, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")


def read_folder_vocabulary(checkpoint: Checkpoint) -> Vocabulary | None:
    """The vocabulary of a transformers folder, or None where the folder has no `tokenizer.json`.

    Raises:
        CheckpointError: `tokenizer.json` or a file beside it cannot be read.
    """
    folder = checkpoint.path
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    settings = _optional(folder / "tokenizer_config.json")
    tokenizer = _tokenizer(path)
    special_tokens = _special_tokens(_optional(folder / "special_tokens_map.json")) | _special_tokens(settings)
    _apply_frame(tokenizer, settings, special_tokens)
    ids = read_folder_special_ids(checkpoint, {n: tokenizer.token_to_id(token) for n, token in special_tokens.items()})
    framed, bare = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
    return Vocabulary(
        tokenizer=tokenizer,
        chat_template=_chat_template(folder, settings),
        bos_id=ids.bos_id,
        eos_ids=ids.eos_ids,
        pad_id=ids.pad_id,
        add_bos=framed != bare and framed[:1] == [ids.bos_id],
        special_tokens=special_tokens,
        settings=settings,
        generation=_optional(folder / "generation_config.json"),
    )


def read_folder_special_ids(checkpoint: Checkpoint, named: Mapping[str, int | None] | None = None) -> SpecialIds:
    """The special ids of a transformers folder.

    Which ids end a text and which fills it is taken from `generation_config.json`, else from `config.json`, else from
    the tokenizer: the order in which transformers looks. What starts a text is the tokenizer's own matter first.

    Args:
        checkpoint: The folder.
        named: The ids of the tokenizer's `bos_token`, `eos_token` and `pad_token`, where there is a tokenizer.
    """
    named = named or {}
    stated = [_optional(checkpoint.path / "generation_config.json"), checkpoint.metadata]
    size = checkpoint.metadata.get("vocab_size")
    known = range(size) if isinstance(size, int) else range(2**31)
    starts = [*_ids(named, "bos_token", known), *(i for source in stated for i in _ids(source, "bos_token_id", known))]
    ends = next(
        filter(None, (_ids(source, "eos_token_id", known) for source in stated)), _ids(named, "eos_token", known)
    )
    pads = [*(i for source in stated for i in _ids(source, "pad_token_id", known)), *_ids(named, "pad_token", known)]
    return SpecialIds(bos_id=next(iter(starts), None), eos_ids=tuple(ends), pad_id=next(iter(pads), None))


def _tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain exceptions
        raise CheckpointError(f"{path} cannot be read as a tokenizer: {error}. Download it again.") from error


def _optional(path: Path) -> dict[str, object]:
    return read_json(path) if path.is_file() else {}


def _special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in NAMED:
        value = settings.get(name)
        if isinstance(value, dict):
            value = cast("dict[str, object]", value).get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _ids(source: Mapping[str, object], name: str, known: range) -> list[int]:
    """The ids under a name that have an embedding; some configurations say -1 for none, or one past the end."""
    value = source.get(name)
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    return [token for token in values if isinstance(token, int) and not isinstance(token, bool) and token in known]


def _apply_frame(tokenizer: Tokenizer, settings: Mapping[str, object], special_tokens: Mapping[str, str]) -> None:
    """Let `add_bos_token` and `add_eos_token`, where they are written down, win over `tokenizer.json`."""
    from tokenizers import processors

    if "add_bos_token" not in settings and "add_eos_token" not in settings:
        return
    first = special_tokens.get("bos_token") if settings.get("add_bos_token") else None
    last = special_tokens.get("eos_token") if settings.get("add_eos_token") else None
    tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    frame_text(tokenizer, first, last)


def _chat_template(folder: Path, settings: Mapping[str, object]) -> str | None:
    if (folder / "chat_template.jinja").is_file():
        return read_text(folder / "chat_template.jinja")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several templates by name
        named = {str(entry.get("name")): entry.get("template") for entry in cast("list[dict[str, object]]", template)}
        template = named.get("default")
    return template if isinstance(template, str) else None
