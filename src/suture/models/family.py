"""What a family of models is: a configuration, a tree made from it, and the names of its weights in checkpoints.

A family is one page (`llama.py`); this is what such a page fills in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from torch import nn

from suture.models.backbone import Backbone
from suture.weights.checkpoint import Checkpoint
from suture.weights.names import NameTable

BOOKKEEPING = (
    *("architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "_commit_hash"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id"),
    *("use_cache", "initializer_range", "return_dict", "output_attentions", "output_hidden_states", "torchscript"),
    *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "transformers.js_config"),
    *("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params", "tokenizer_class", "prefix"),
    *("do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "num_beams"),
    *("max_length", "min_length", "max_new_tokens", "early_stopping", "no_repeat_ngram_size", "num_return_sequences"),
    *("use_bfloat16", "gradient_checkpointing", "max_sequence_length"),
)
"""Fields of `config.json` that say nothing about what a decoder computes, in the words of transformers 4 and 5."""


class DecoderConfig(Protocol):
    """What every family's configuration tells. Widths and counts are numbers of elements.

    Each is a frozen dataclass, so that a model can be saved with another number of blocks or tokens.
    """

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks, one after another."""
        ...

    @property
    def max_positions(self) -> int:
        """How many tokens a row may have."""
        ...

    @property
    def tied(self) -> bool:
        """Whether the head's weight is the embedding's."""
        ...


def with_as_many_blocks(config: Any, blocks: Sequence[nn.Module]) -> Any:
    """The configuration of a model of these blocks, where all blocks of a family are alike."""
    return replace(config, num_blocks=len(blocks))


@dataclass(frozen=True)
class Family:
    """One family of decoders.

    Attributes:
        name: For messages.
        model_types: Those of `config.json` that it is.
        gguf_architectures: Those of GGUF files that it is.
        read: The configuration of a checkpoint; an unknown field that may change the numbers is refused by name.
        write: The content of `config.json` for a configuration.
        build: The tree, without its weights where it is made on the meta device: a backbone and a head. The head is a
            linear layer, or a chain that begins with one, `projection`.
        names: The name table of a format.
        with_blocks: The configuration of a model that has become one of these blocks, in the order of calling.
    """

    name: str
    model_types: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    read: Callable[[Checkpoint], DecoderConfig]
    write: Callable[[Any], Mapping[str, object]]
    build: Callable[[Any], tuple[Backbone, nn.Module]]
    names: Callable[[Any, Literal["transformers", "gguf"]], NameTable]
    with_blocks: Callable[[Any, Sequence[nn.Module]], Any] = with_as_many_blocks
