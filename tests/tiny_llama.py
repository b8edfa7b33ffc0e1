"""A Llama of 50 thousand random weights and its tokenizer, as transformers makes and saves them.

Not part of `conftest.py`, because importing transformers takes seconds that most tests need not wait for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = """\
A surgeon reads before she cuts, and she cuts once. The tree is what you write and edit; the graph is what it means.
Once upon a time there was a model of few layers, which knew the capital of France and the weight of an orange.
Every block reads the stream, adds what it found, and hands it on to the next. What was taken out can be put back.
"""


def make_tokenizer() -> PreTrainedTokenizerFast:
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
