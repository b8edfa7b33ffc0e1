"""What a checkpoint says about text: its tokenizer, its special ids and its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class SpecialIds:
    """The ids that a model needs without any text.

    Attributes:
        bos_id: The id of the start token, or None.
        eos_ids: Every id that ends a text; empty where the checkpoint names none.
        pad_id: The id that fills ended rows, or None where the checkpoint names none.
    """

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with the facts a language model needs beside it.

    `tokenizer.encode(text)` adds what the model was trained to see around a text (a start token where there is
    one); `tokenizer.encode(text, add_special_tokens=False)` adds nothing. Text that a chat template rendered already
    holds its start token and wants the second.

    Attributes:
        tokenizer: Encodes and decodes; its ids are the rows of the embedding.
        chat_template: The Jinja source that turns chat messages into text, or None where the checkpoint has none.
        bos_id: The id of the start token, or None.
        eos_ids: Every id that ends a text; empty where the checkpoint names none.
        pad_id: The id that fills ended rows, or None where the checkpoint names none.
        add_bos: True when `tokenizer.encode(text)` puts the start token first.
        special_tokens: The named special tokens as text (`bos_token`, `eos_token`, `pad_token`, `unk_token`), each
            only where there is one; chat templates read them as variables.
        settings: The content of `tokenizer_config.json` as found, written back when the model is saved.
        generation: The content of `generation_config.json` as found, written back when the model is saved.
    """

    tokenizer: Tokenizer
    chat_template: str | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    add_bos: bool = False
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    generation: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def special_ids(self) -> SpecialIds:
        """The ids of the start, the ends and the padding."""
        return SpecialIds(self.bos_id, self.eos_ids, self.pad_id)
