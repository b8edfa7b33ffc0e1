"""How many tokens each row may get."""

from __future__ import annotations

from collections.abc import Sequence

from suture.generation.checks import ensure_integer

DEFAULT_NEW_TOKENS = 128
"""The new tokens of a call that sets no limit, or fewer where the model has no positions for them."""


def new_token_limits(
    lengths: Sequence[int],
    max_new_tokens: int | None = None,
    max_length: int | None = None,
    positions: int | None = None,
) -> list[int]:
    """The most new tokens for each prompt, from the lengths of all.

    Where both limits are given, both hold. A length counts a row's own tokens and not its padding, so a row gets the
    same limit alone and in a batch. `positions` is how many the model has, or None where it does not say.

    Raises:
        TypeError: a limit is not a whole number.
        ValueError: a limit is negative, `max_length` is not above a prompt, or the model has too few positions.

    >>> new_token_limits([3, 5], max_length=8)
    [5, 3]
    """
    if max_new_tokens is not None:
        max_new_tokens = ensure_integer("max_new_tokens", max_new_tokens, least=0)
    if max_length is not None:
        max_length = ensure_integer("max_length", max_length, least=1)
    return [limit_of(length, max_new_tokens, max_length, positions) for length in lengths]


def limit_of(length: int, max_new_tokens: int | None, max_length: int | None, positions: int | None) -> int:
    """The most new tokens for a prompt of `length` tokens."""
    if positions is not None and length > positions:
        raise ValueError(
            f"The prompt has {length} tokens, but the model has {positions} positions. Shorten the prompt."
        )
    if max_length is not None and max_length <= length:
        raise ValueError(
            f"max_length is {max_length}, but the prompt has {length} tokens already, and they count. "
            f"Give a max_length above that, or max_new_tokens, which counts the reply alone."
        )
    given = [max_new_tokens] if max_new_tokens is not None else []
    given += [max_length - length] if max_length is not None else []
    if positions is None:
        return min(given, default=DEFAULT_NEW_TOKENS)
    if not given and length == positions:
        raise ValueError(f"The prompt fills all {positions} positions of the model: nothing can follow it. Shorten it.")
    limit = min(given, default=min(DEFAULT_NEW_TOKENS, positions - length))
    if length + limit > positions:
        raise ValueError(
            f"The prompt has {length} tokens and {limit} new ones are asked for, {length + limit} together, but the "
            f"model has {positions} positions. Ask for at most {positions - length} new tokens."
        )
    return limit
