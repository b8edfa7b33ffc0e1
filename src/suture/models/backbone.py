"""The root of a decoder: it takes token ids, settles positions, and keeps the cache in step.

Shapes: B rows, T new tokens, S tokens with the cached ones, H heads, D width of an embedding. One sequence may come
without B, where there is no cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from suture.graph.input import Input
from suture.layers.cache import Cache
from suture.layers.chain import Chain
from suture.layers.context import Context, Declaration, Read
from suture.layers.description import register
from suture.layers.functions import register_function
from suture.layers.symbolic import step
from suture.layers.tokens import Tokens
from suture.layers.torch_layers import Embedding

_KEYS = ("padding_mask", "attention_mask", "positions", "embeddings", "cache")
_ID_DTYPES = (torch.long, torch.int)


@register("models.Backbone")
class Backbone(Chain):
    """A chain from token ids (B, T) to hidden states (B, T, D).

    It is called with token ids and, by name, any of these entries of the context scope `"inputs"`:

    * `padding_mask` (B, T): True = a real token.
    * `attention_mask` (B, T, S) or (B, H, T, S): True = may attend.
    * `positions` (B, T): by default counted, real tokens only, on from those in the cache.
    * `embeddings` (B, T, D): instead of token ids.
    * `cache`: what `init_cache` made. The call goes on from it and advances it.

    Any layer inside may read these; `positions` are always there.

    Args:
        layers: As of any chain.
        max_positions: How many tokens a row may have, None for no limit.
        named: As of any chain.

    Raises:
        TypeError: Ids that are not whole numbers, or masks that are not boolean.
        ValueError: Ids and embeddings, or neither; an entry of another shape; more tokens than the model has positions.
        IndexError: An id that is not in the vocabulary.

    >>> from suture import layers as sl
    >>> backbone = Backbone(embedding=TokenEmbedding(10, 8), attention=sl.SelfAttention(8, causal=True))
    >>> cache = backbone.init_cache(batch=1, length=16)
    >>> backbone(torch.tensor([[3, 1, 4]]), cache=cache).shape, cache.length
    (torch.Size([1, 3, 8]), 3)
    """

    reads: Mapping[str, Declaration] = {key: Read("inputs", key, default=None) for key in _KEYS}
    writes = (("inputs", "positions"),)

    def __init__(
        self, *layers: nn.Module | Mapping[str, nn.Module], max_positions: int | None = None, **named: nn.Module
    ) -> None:
        super().__init__(*layers, **named)
        self.max_positions = max_positions

    def init_cache(self, batch: int, length: int) -> Cache:
        """An empty cache for `batch` rows with room for `length` tokens."""
        return Cache(batch, length)

    def graph_inputs(self) -> tuple[Input]:
        """What a graph of this backbone is called with, beside the entries that it reads."""
        return (Input("token_ids", shape=(None, None), dtype=torch.long, optional=True),)

    def forward(self, *args: Any, context: Context | None = None) -> Any:
        context = Context() if context is None else context
        token_ids: Any = args[0] if args else None
        if len(args) > 1:
            raise TypeError(f"A backbone takes token ids, and all else by name; received {len(args)} arguments.")
        padding_mask, _, positions, embeddings, cache = (context.get("inputs", key, None) for key in _KEYS)
        if token_ids is None and embeddings is None:
            raise ValueError("A backbone takes either token ids or embeddings=...; received neither.")
        positions = step(
            begin,
            token_ids,
            padding_mask,
            positions,
            embeddings,
            cache,
            max_positions=self.max_positions,
            # Looked at for a cache alone: compiled code would be compiled anew after every edit.
            structure_version=None if cache is None else self.structure_version,
        )
        context.set("inputs", "positions", positions)
        try:
            return step(end, super().forward(token_ids, context=context), cache)
        except BaseException:
            if isinstance(cache, Cache):
                cache.discard()
            raise


@register_function("backbone.begin")
def begin(
    token_ids: Tensor | None,
    padding_mask: Tensor | None,
    positions: Tensor | None,
    embeddings: Tensor | None,
    cache: Cache | None,
    *,
    max_positions: int | None,
    structure_version: int | None,
) -> Tensor | None:
    """Begins a call of a backbone: checks what is given, and settles the positions (B, T) of the new tokens.

    A part that was cut out of its graph may have neither ids nor embeddings: then its layers number what they get.
    """
    if token_ids is None and embeddings is None and cache is None:
        return positions if padding_mask is None else (padding_mask.cumsum(-1) - 1).clamp(min=0)
    tokens = _tokens(token_ids, embeddings)
    _check_entries(tokens, padding_mask, positions)
    if positions is None:
        _check_room(max_positions, tokens.shape[-1], cache)
    if cache is None:
        return Tokens().followed_by(tokens.shape, tokens.device, padding_mask, positions)[1]
    return cache.start(tokens.shape, tokens.device, padding_mask, positions, structure_version)


@register_function("backbone.end")
def end(result: Any, cache: Cache | None) -> Any:
    """Ends a call of a backbone that went well: what it gives, with the cache advanced."""
    if cache is not None:
        cache.finish()
    return result


@register("models.TokenEmbedding")
class TokenEmbedding(Embedding):
    """The embeddings of token ids: whole numbers (..., T) to (..., T, D).

    Embeddings given in the context, `embeddings` of the scope `"inputs"`, are returned instead.

    Raises:
        IndexError: An id that is not in the vocabulary. (On a GPU it is torch that fails, and less clearly: to look at
            the ids there would make every step wait.)

    >>> TokenEmbedding(10, 8)(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 8])
    """

    if TYPE_CHECKING:

        def __call__(self, token_ids: Tensor | None, /) -> Tensor: ...

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__(num_embeddings, embedding_dim)
        self.reads = {"embeddings": Read("inputs", "embeddings", default=None)}

    def forward(self, input: Tensor | None, embeddings: Tensor | None = None) -> Tensor:  # noqa: A002 (torch's name)
        if embeddings is not None:
            return embeddings
        if input is None:
            raise ValueError("There is nothing to embed: give token ids, or embeddings= in their stead.")
        try:
            return super().forward(input)
        except IndexError:
            unknown = input[(input < 0) | (input >= self.num_embeddings)]
            raise IndexError(
                f"Token id {int(unknown[0])} is not in the vocabulary of {self.num_embeddings} tokens, which are "
                f"numbered from 0. Do the ids come from the tokenizer of this model?"
            ) from None


def _check_room(max_positions: int | None, new_tokens: int, cache: Cache | None) -> None:
    length = new_tokens + (0 if cache is None else cache.length)
    if max_positions is not None and length > max_positions:
        raise ValueError(
            f"The model has {max_positions} positions; received {length} tokens, cached ones included. "
            f"Shorten the sequence, or give positions=."
        )


def _tokens(token_ids: Any, embeddings: Tensor | None) -> Tensor:
    """A tensor (B, T) with the shape and the device of the new tokens."""
    if (token_ids is None) == (embeddings is None):
        what = "received both" if embeddings is not None else "received neither"
        raise ValueError(f"A backbone takes either token ids or embeddings=...; {what}.")
    if embeddings is not None:
        if embeddings.dim() not in (2, 3):
            raise ValueError(f"embeddings have the shape (B, T, D); received {tuple(embeddings.shape)}.")
        tokens = embeddings[..., 0]
    elif not isinstance(token_ids, Tensor):
        raise TypeError(f"Token ids are a tensor (B, T); received {token_ids!r:.60} ({type(token_ids).__name__}).")
    elif token_ids.dtype not in _ID_DTYPES:
        raise TypeError(
            f"Token ids are whole numbers, torch.long or torch.int; received {token_ids.dtype} of shape "
            f"{tuple(token_ids.shape)}. Embeddings go by name: embeddings=..."
        )
    else:
        tokens = token_ids
    if tokens.dim() not in (1, 2) or tokens.shape[-1] == 0:
        raise ValueError(f"Token ids have the shape (B, T), T at least 1; received {tuple(tokens.shape)}.")
    return tokens


def _check_entries(tokens: Tensor, padding_mask: Tensor | None, positions: Tensor | None) -> None:
    entries: dict[str, Any] = {"padding_mask": padding_mask, "positions": positions}
    for name, entry in entries.items():
        if entry is not None and not isinstance(entry, Tensor):
            raise TypeError(f"{name} is a tensor (B, T); received {entry!r:.60} ({type(entry).__name__}).")
        if entry is not None and entry.shape != tokens.shape:
            raise ValueError(
                f"{name} is given for the new tokens, whose shape is {tuple(tokens.shape)}, and for those only; "
                f"received {tuple(entry.shape)}."
            )
    if padding_mask is not None and padding_mask.dtype != torch.bool:
        raise TypeError(
            f"padding_mask is boolean, True = a real token; received {padding_mask.dtype}. "
            f"Of a mask of ones and zeros, pass mask.bool()."
        )
