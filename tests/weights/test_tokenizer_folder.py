from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.tokenizer_folder import read_folder_special_ids, read_folder_vocabulary
from suture.weights.vocabulary import SpecialIds, Vocabulary

START = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


def write_tokenizer(folder: Path, framed: bool = False) -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3, "a": 4, "b": 5}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if framed:
        tokenizer.post_processor = START
    tokenizer.save(str(folder / "tokenizer.json"))


def read(folder: Path, config: dict[str, object] | None = None, **files: dict[str, object]) -> Vocabulary:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    vocabulary = read_folder_vocabulary(Checkpoint(folder, "transformers", "llama", config or {}, {}))
    assert vocabulary is not None
    return vocabulary


def test_a_folder_without_tokenizer_has_no_vocabulary(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "transformers", "llama", {"eos_token_id": 7}, {})

    assert read_folder_vocabulary(checkpoint) is None
    assert read_folder_special_ids(checkpoint) == SpecialIds(eos_ids=(7,))


@pytest.mark.parametrize("strange", [-1, 6, True, "2", None])
def test_an_id_that_has_no_embedding_is_no_id(folder: Path, strange: Any) -> None:
    ids: dict[str, object] = {"pad_token_id": strange, "eos_token_id": [2, strange]}
    vocabulary = read(folder, {"vocab_size": 6, **ids}, generation_config=ids, tokenizer_config={"pad_token": "<pad>"})
    assert (vocabulary.eos_ids, vocabulary.pad_id) == ((2,), 3)


def test_a_chat_template_that_is_no_text_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja is not text in UTF-8"):
        read(folder)


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(CheckpointError, match=r"tokenizer.json cannot be read as a tokenizer"):
        read(tmp_path)


def test_named_tokens_are_text_or_objects(folder: Path) -> None:
    vocabulary = read(
        folder, tokenizer_config={"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}
    )

    assert vocabulary.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (vocabulary.bos_id, vocabulary.eos_ids, vocabulary.pad_id) == (1, (2,), None)


def test_named_tokens_may_stand_in_a_file_of_their_own(folder: Path) -> None:
    assert read(folder, special_tokens_map={"pad_token": "<pad>"}).pad_id == 3


def test_end_ids_are_those_of_generation_before_those_of_the_model_before_that_of_the_tokenizer(folder: Path) -> None:
    settings: dict[str, object] = {"eos_token": "</s>"}

    assert read(folder, tokenizer_config=settings).eos_ids == (2,)
    assert read(folder, config={"eos_token_id": 4}).eos_ids == (4,)
    assert read(folder, config={"eos_token_id": 4}, generation_config={"eos_token_id": [4, 5]}).eos_ids == (4, 5)


def test_the_chat_template_is_a_file_or_a_setting_or_the_default_of_several(folder: Path) -> None:
    assert read(folder).chat_template is None
    assert read(folder, tokenizer_config={"chat_template": "one"}).chat_template == "one"
    named = [{"name": "tools", "template": "two"}, {"name": "default", "template": "three"}]
    assert read(folder, tokenizer_config={"chat_template": named}).chat_template == "three"
    (folder / "chat_template.jinja").write_text("four")
    assert read(folder).chat_template == "four"


def test_whether_a_start_token_is_added_is_seen_from_the_tokenizer(folder: Path) -> None:
    settings: dict[str, object] = {"bos_token": "<s>"}

    assert not read(folder, tokenizer_config=settings).add_bos
    write_tokenizer(folder, framed=True)
    assert read(folder, tokenizer_config=settings).add_bos


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("said", [False, True])
def test_a_setting_that_says_whether_to_add_a_start_token_wins(folder: Path, framed: bool, said: bool) -> None:
    write_tokenizer(folder, framed)

    vocabulary = read(folder, tokenizer_config={"bos_token": "<s>", "add_bos_token": said})

    assert vocabulary.add_bos is said
    assert vocabulary.tokenizer.encode("a").tokens == (["<s>", "a"] if said else ["a"])


def test_what_was_found_is_kept_for_saving(folder: Path) -> None:
    vocabulary = read(folder, tokenizer_config={"model_max_length": 9}, generation_config={"temperature": 0.5})

    assert vocabulary.settings == {"model_max_length": 9}
    assert vocabulary.generation == {"temperature": 0.5}
