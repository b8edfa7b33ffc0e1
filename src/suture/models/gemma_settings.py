"""What configurations of Gemma models share: their sizes, and which blocks have a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, cast

from suture.models.family import BOOKKEEPING
from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class GemmaSizes:
    """The numbers that every Gemma has. Widths are numbers of elements, `norm_epsilon` is added to a mean square."""

    vocabulary_size: int
    embedding_dim: int
    feedforward_dim: int
    num_blocks: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    max_positions: int
    norm_epsilon: float
    attention_bias: bool
    tied: bool

    def __post_init__(self) -> None:
        if self.num_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"The configuration has {self.num_heads} query heads and {self.num_key_value_heads} key heads, but "
                "each key head serves equally many query heads. Correct one of the two."
            )
        if self.head_dim % 2:
            raise CheckpointError(
                f"The configuration has heads of width {self.head_dim}, but rotary position embedding turns pairs of "
                "elements, so the width is even. Correct head_dim."
            )


class Sizes(TypedDict):
    """The fields of `GemmaSizes`, to make a configuration with."""

    vocabulary_size: int
    embedding_dim: int
    feedforward_dim: int
    num_blocks: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    max_positions: int
    norm_epsilon: float
    attention_bias: bool
    tied: bool


def open_fields(checkpoint: Checkpoint) -> Fields:
    """The fields of a `config.json`, without those that change nothing or are understood at one value only."""
    fields = Fields(checkpoint.metadata, f"{checkpoint.path / 'config.json'}")
    fields.ignore([*BOOKKEEPING, "cache_implementation"])
    fields.only("hidden_activation", "gelu_pytorch_tanh")
    fields.only("attention_dropout", 0)
    fields.only("use_bidirectional_attention", False)
    return fields


def read_sizes(fields: Fields) -> Sizes:
    """The sizes that a `config.json` says."""
    return {
        "vocabulary_size": fields.integer("vocab_size"),
        "embedding_dim": fields.integer("hidden_size"),
        "feedforward_dim": fields.integer("intermediate_size"),
        "num_blocks": fields.integer("num_hidden_layers", least=0),
        "num_heads": fields.integer("num_attention_heads"),
        "num_key_value_heads": fields.integer("num_key_value_heads"),
        "head_dim": fields.integer("head_dim", 256),
        "max_positions": fields.integer("max_position_embeddings"),
        "norm_epsilon": fields.number("rms_norm_eps", 1e-6),
        "attention_bias": fields.flag("attention_bias", False),
        "tied": fields.flag("tie_word_embeddings", True),
    }


def write_sizes(config: GemmaSizes) -> dict[str, object]:
    """The fields of `config.json` for the sizes, as transformers 4 and 5 both read them."""
    return {
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.embedding_dim,
        "intermediate_size": config.feedforward_dim,
        "num_hidden_layers": config.num_blocks,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_epsilon,
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": config.tied,
    }


def open_gguf_fields(checkpoint: Checkpoint) -> Fields:
    """The keys of a GGUF file that describe the model, without those that change nothing."""
    prefix = f"{checkpoint.architecture}."
    values = {key.removeprefix(prefix): value for key, value in checkpoint.metadata.items() if key.startswith(prefix)}
    fields = Fields(values, f"{checkpoint.path}, keys of {checkpoint.architecture}")
    fields.ignore(["tensor_data_layout"])
    return fields


def read_gguf_sizes(fields: Fields, checkpoint: Checkpoint) -> Sizes:
    """The sizes that a GGUF file says."""
    embedding = checkpoint.tensors.get("token_embd.weight")
    heads, width = fields.integer("attention.head_count"), fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", width // heads)
    fields.only("attention.value_length", head_dim)
    return {
        "vocabulary_size": fields.integer("vocab_size", embedding.shape[0] if embedding else None),
        "embedding_dim": width,
        "feedforward_dim": fields.integer("feed_forward_length"),
        "num_blocks": fields.integer("block_count", least=0),
        "num_heads": heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_positions": fields.integer("context_length"),
        "norm_epsilon": fields.number("attention.layer_norm_rms_epsilon"),
        "attention_bias": "blk.0.attn_q.bias" in checkpoint.tensors,
        "tied": "output.weight" not in checkpoint.tensors,
    }


def gguf_attention_divisor(sizes: Sizes, largest: int) -> float:
    """By the root of what attention scores are divided, which no file says.

    It is the width of a head, but in the largest model of a family, which is told by its number of blocks, the width of
    the model by its number of heads.
    """
    if sizes["num_blocks"] == largest:
        return sizes["embedding_dim"] // sizes["num_heads"]
    return sizes["head_dim"]


def read_layer_types(fields: Fields, num_blocks: int, pattern: int) -> tuple[bool, ...]:
    """Which blocks have a window: as `layer_types` says, by default all but every `pattern`-th.

    >>> read_layer_types(Fields({}, "here"), num_blocks=5, pattern=2)
    (True, False, True, False, True)
    >>> read_layer_types(Fields({"layer_types": ["full_attention", "sliding_attention"]}, "here"), 2, pattern=2)
    (False, True)
    """
    types = fields.take("layer_types")
    if types is None:
        return tuple((number + 1) % pattern > 0 for number in range(num_blocks))
    kinds = cast("list[object]", types) if isinstance(types, list) else []
    if len(kinds) != num_blocks or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise CheckpointError(
            f"{fields.where}: layer_types is {types!r:.120}, where one of {FULL!r} and {SLIDING!r} is expected for "
            f"each of {num_blocks} blocks. Correct the field."
        )
    return tuple(kind == SLIDING for kind in kinds)


def write_layer_types(windowed: Sequence[bool]) -> list[str]:
    """The field `layer_types`."""
    return [SLIDING if has_window else FULL for has_window in windowed]


def whole(number: float) -> int | float:
    """The number as a whole one where it is, since transformers wants it so."""
    return int(number) if number == int(number) else number
