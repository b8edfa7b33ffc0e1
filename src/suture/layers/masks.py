"""Masks of attention: what a query may attend to, made once per call and shared by every layer.

A mask is boolean, True = may attend, and broadcasts to (B, H, T, S). None says that the mask would leave out nothing
beyond plain causality, which attention does faster by itself.

Shapes: B rows (no B for a single sequence), H heads, T new tokens, S tokens with the cached ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suture.layers.cache import Cache
from suture.layers.context import Derived, Read
from suture.layers.functions import register_function


@register_function
def causal_mask(
    positions: Tensor | None,
    padding_mask: Tensor | None,
    attention_mask: Tensor | None,
    cache: Cache | None,
    window: int | None = None,
) -> Tensor | None:
    """Each token attends to the real tokens up to itself, as far as `attention_mask` allows it.

    A token that could attend to nothing, such as padding before the first real token, attends to itself instead: so no
    kernel gives NaN for it, in any dtype.

    Args:
        positions: (B, T). Order is by place, not by position; this only says where the tokens are.
        padding_mask: (B, T), True = a real token.
        attention_mask: (B, T, S) or (B, H, T, S), True = may attend.
        cache: What came before, and which of it is real.
        window: To how many tokens at most, itself included: the last real ones. None: to all.

    >>> causal_mask(None, torch.tensor([[False, True, True]]), None, None).int()
    tensor([[[[1, 0, 0],
              [0, 1, 0],
              [0, 1, 1]]]], dtype=torch.int32)
    >>> causal_mask(torch.arange(4), None, None, None, window=2).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    seen, real = (0, padding_mask) if cache is None else (cache.length, cache.padding_mask)
    if attention_mask is None and padding_mask is None and cache is not None and cache.new_tokens == 1:
        if real is None:
            return None
        near = real if window is None else real & _within(window, real, seen).squeeze(-2)
        return near[..., None, None, :]
    tokens = _first(positions, padding_mask, attention_mask)
    if tokens is None:
        return None
    length = seen + tokens.shape[-1]
    # A program that is compiled or exported is for every length, so it does not ask.
    all_near = window is None or (not torch.compiler.is_compiling() and length <= window)
    if real is None and attention_mask is None and seen == 0 and all_near:
        return None
    places = torch.arange(length, device=tokens.device)
    own = places[seen:, None]
    mask = places <= own
    if window is not None and real is None:
        mask = mask & (own - places < window)
    elif window is not None and real is not None:
        mask = mask & _within(window, real, seen).unsqueeze(-3)
    if real is not None:
        mask = mask & real[..., None, None, :]
    if attention_mask is not None:
        mask = mask & _with_heads(attention_mask, tokens, seen)
    if real is None and attention_mask is None:
        return mask
    return mask | ((places == own) & ~mask.any(-1, keepdim=True))


@register_function
def visible_mask(
    positions: Tensor | None, padding_mask: Tensor | None, attention_mask: Tensor | None, cache: Cache | None
) -> Tensor | None:
    """Each token attends to all real tokens, before and after it, as far as `attention_mask` allows it.

    A token that could attend to nothing attends to everything instead: so no kernel gives NaN for it, in any dtype.
    Arguments are those of `causal_mask`.

    >>> visible_mask(None, torch.tensor([[False, True, True], [False, False, False]]), None, None).int()
    tensor([[[[0, 1, 1]]],
    <BLANKLINE>
    <BLANKLINE>
            [[[1, 1, 1]]]], dtype=torch.int32)
    """
    seen, real = (0, padding_mask) if cache is None else (cache.length, cache.padding_mask)
    mask = None if real is None else real[..., None, None, :]
    tokens = _first(positions, padding_mask, attention_mask)
    if attention_mask is not None and tokens is not None:
        allowed = _with_heads(attention_mask, tokens, seen)
        mask = allowed if mask is None else mask & allowed
    return None if mask is None else mask | ~mask.any(-1, keepdim=True)


@register_function
def sequence_mask(padding_mask: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """Each query attends to the real elements of another sequence, as far as `attention_mask` allows it.

    A query that could attend to nothing attends to everything instead, as in `visible_mask`.

    Args:
        padding_mask: (B, S), True = a real element.
        attention_mask: (B, T, S) or (B, H, T, S), True = may attend.

    >>> sequence_mask(torch.tensor([[True, True, False]]), None).int()
    tensor([[[[1, 1, 0]]]], dtype=torch.int32)
    """
    for name, given in (("padding_mask", padding_mask), ("attention_mask", attention_mask)):
        if given is not None:
            _check_boolean(name, given)
    mask = None if padding_mask is None else padding_mask[..., None, None, :]
    if attention_mask is not None:
        allowed = attention_mask if attention_mask.dim() > 3 else attention_mask.unsqueeze(-3)
        mask = allowed if mask is None else mask & allowed
    return None if mask is None else mask | ~mask.any(-1, keepdim=True)


def mask_of(scope: str, causal: bool, window: int | None = None) -> Derived:
    """The mask over what the context scope describes: `"inputs"` the tokens of a backbone, others a sequence beside.

    Only the inputs have a cache.
    """
    if scope != "inputs" and not causal:
        beside = ("padding_mask", "attention_mask")
        return Derived(sequence_mask, reads={key: Read(scope, key, default=None) for key in beside})
    entries = ("positions", "padding_mask", "attention_mask", "cache")
    reads = {key: Read(scope, key, default=None) for key in entries}
    if window is not None:
        return Derived(causal_mask, reads=reads, window=window)
    return Derived(causal_mask if causal else visible_mask, reads=reads)


def _within(window: int, real: Tensor, seen: int) -> Tensor:
    """(B, T, S): whether fewer than `window` real tokens lie between two tokens, the later one included."""
    counts = real.cumsum(-1)
    return counts[..., seen:, None] - counts[..., None, :] < window


def _first(positions: Tensor | None, padding_mask: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """A tensor (B, T) that has the shape and the device of the new tokens."""
    if positions is not None:
        return positions
    if padding_mask is not None or attention_mask is None:
        return padding_mask
    return attention_mask[..., 0] if attention_mask.dim() < 4 else attention_mask[..., 0, :, 0]


def _with_heads(attention_mask: Tensor, tokens: Tensor, seen: int) -> Tensor:
    """The caller's mask, checked, with a dimension for the heads."""
    *rows, new_tokens = tokens.shape
    expected = (new_tokens, seen + new_tokens)
    _check_boolean("attention_mask", attention_mask)
    given = list(attention_mask.shape[: len(rows)])
    fits = attention_mask.dim() - len(rows) in (2, 3) and given in (rows, [1] * len(rows))
    if not fits or attention_mask.shape[-2:] != expected:
        raise ValueError(
            f"attention_mask has the shape {(*rows, *expected)}, or {(*rows, 'heads', *expected)}: for each of the "
            f"{new_tokens} new tokens which of the {expected[1]} tokens, cached ones first, it may attend to. "
            f"Received {tuple(attention_mask.shape)}."
        )
    return attention_mask if attention_mask.dim() == len(rows) + 3 else attention_mask.unsqueeze(-3)


def _check_boolean(name: str, mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} is boolean, True = may attend; received {mask.dtype}. "
            f"Of a mask that is added to the scores, pass `mask == 0`; of one of zeros and ones, `mask.bool()`."
        )
