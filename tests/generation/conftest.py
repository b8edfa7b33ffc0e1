"""Tokenizers that the tests of generation share."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from suture.generation.text import Tokenizer
from suture.weights.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def byte_level(tiny_tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """The tokenizer of the tiny models: bytes and pieces of bytes; ids 0, 1 and 2 are pad, start and end."""
    return Tokenizer(Vocabulary(tiny_tokenizer.backend_tokenizer, bos_id=1, eos_ids=(2,), pad_id=0))


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    """Words with a mark for the space before them, and bytes as tokens for anything else, as Llama 2 has them."""
    words = ["<unk>", "<s>", "</s>", "\u2581", "\u2581big", "\u2581cat", "cat"]
    pieces = {word: index for index, word in enumerate(words)}
    pieces |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    tokenizer = tokenizers.Tokenizer(models.BPE(pieces, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(Vocabulary(tokenizer, bos_id=1, eos_ids=(2,)))
