"""The cache of a model's calls, and the layer through which attention uses it.

A model that is called piece by piece keeps one `Cache`. It knows how many tokens it stands for, which of them are real
and at which positions they are; what the stateful layers keep is in its slots. A slot belongs to a call site: the n-th
stateful call of a forward has slot n. So copied, shared, removed and inserted layers need no numbers of their own.

Shapes: B rows, T new tokens, S tokens with the cached ones.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

import torch
from torch import Tensor, nn

from suture.layers.context import Read
from suture.layers.slots import KeyValueSlot, Slot
from suture.layers.symbolic import SymbolicCall
from suture.layers.tokens import Tokens

AnySlot = TypeVar("AnySlot", bound=Slot)


class Cache:
    """What the stateful layers of a model keep between its calls, for `batch` rows and at most `length` tokens.

    A backbone makes one with `backbone.init_cache(batch, length)`, and each `backbone(token_ids, cache=cache)` that
    ends well advances it by the new tokens. A call that raises leaves it as it was. Driven by hand, a call is
    `start`, the layers, and `finish`, or `discard` where one raised.

    >>> cache, layer = Cache(batch=1, length=8), nn.Identity()
    >>> cache.start((1, 3))
    tensor([[0, 1, 2]])
    >>> keys, values = cache.slot(layer, KeyValueSlot).extend(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> cache.finish()
    >>> cache.length, cache.capacity
    (3, 8)
    """

    def __init__(self, batch: int, length: int) -> None:
        if batch < 1 or length < 1:
            raise ValueError(f"A cache holds at least one row and one token; received batch={batch}, length={length}.")
        self.batch = batch
        self.capacity = length
        self._tokens = Tokens()
        self._slots: list[tuple[nn.Module, Slot]] = []
        self._structure_version: int | None = None
        self._staged: Tokens | None = None
        self._calls = 0

    @property
    def length(self) -> int:
        """The number of cached tokens of a row, padding included; those of a running call come in at its end."""
        return self._tokens.length

    @property
    def new_tokens(self) -> int:
        """The number of tokens of a row in the running call, 0 between calls."""
        return 0 if self._staged is None else self._staged.length - self._tokens.length

    @property
    def padding_mask(self) -> Tensor | None:
        """Which of the cached tokens, and in a call of the new ones, are real: (B, S). None: all are."""
        return (self._staged or self._tokens).real

    @property
    def positions(self) -> Tensor | None:
        """Where the cached tokens, and in a call the new ones, are: (B, S). None: each at the place where it came."""
        return (self._staged or self._tokens).positions

    def start(
        self,
        shape: tuple[int, ...],
        device: torch.device | None = None,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        structure_version: int | None = None,
    ) -> Tensor:
        """Begins a call with new tokens of `shape` (B, T), and gives their positions (B, T).

        Args:
            shape: (B, T).
            device: Where the positions are made.
            padding_mask: (B, T), True = a real token. None: all are.
            positions: (B, T), where the caller decides them. None: counted on, real tokens only.
            structure_version: Of the model, which must be the same in every call.

        Raises:
            ValueError: The tokens are not of the cache's batch or do not fit in, or the model was edited.
        """
        if len(shape) != 2 or shape[0] != self.batch:
            raise ValueError(
                f"A cache of {self.batch} rows takes tokens of shape ({self.batch}, T); received {tuple(shape)}. "
                f"Make a cache for these: init_cache(batch=..., length=...)."
            )
        length = self.length + shape[1]
        if length > self.capacity:
            raise ValueError(
                f"The cache has room for {self.capacity} tokens and holds {self.length}: {shape[1]} more do not fit. "
                f"Make a longer one, init_cache(batch={self.batch}, length={length}), or cache.copy(length={length})."
            )
        if self.length == 0:
            self._slots.clear()
            self._structure_version = structure_version
        elif structure_version != self._structure_version:
            raise ValueError(
                f"The model was edited since this cache was filled with {self.length} tokens, so the cache does not "
                f"hold what the model computes now. Start again with a new cache, or after cache.rewind(0)."
            )
        self.discard()
        self._calls = 0
        self._staged, positions = self._tokens.followed_by(shape, device, padding_mask, positions)
        return positions

    def slot(self, layer: nn.Module, kind: type[AnySlot]) -> AnySlot:
        """What `layer`, which makes the next stateful call, keeps at this call site.

        Raises:
            ValueError: No call was started, or another layer made the call of this number before.
        """
        name, number = type(layer).__name__, self._calls
        if self._staged is None:
            raise ValueError(f"{name} received a cache that no call has started. Pass it to a backbone: cache=...")
        if number == len(self._slots):
            if self.length:
                raise ValueError(self._mismatch(f"{name} makes stateful call {number + 1}"))
            self._slots.append((layer, kind(self.batch, self.capacity)))
        owner, slot = self._slots[number]
        if owner is not layer or not isinstance(slot, kind):
            raise ValueError(self._mismatch(f"stateful call {number + 1} comes from another {name}"))
        self._calls += 1
        return slot

    def finish(self) -> None:
        """Ends a call that went well: the new tokens are now cached.

        Raises:
            ValueError: No call was started, or this one did not go through the same layers as the earlier ones.
        """
        if self._staged is None:
            raise ValueError("No call was started: cache.start(...) comes before cache.finish().")
        if self._calls != len(self._slots):
            raise ValueError(self._mismatch(f"only {self._calls} stateful calls were made"))
        for _, slot in self._slots:
            slot.commit(self._staged.length)
        self._tokens, self._staged = self._staged, None

    def discard(self) -> None:
        """Ends a call that raised: the cache is as it was before, and holds nothing of that call."""
        if self._staged is not None:
            self._staged = None
            for _, slot in self._slots:
                slot.discard()

    def earlier_in_window(self, window: int) -> int:
        """How many of the cached tokens, the last ones, may be in a window of `window` real tokens of later ones.

        >>> cache = Cache(batch=1, length=8)
        >>> positions = cache.start((1, 4), padding_mask=torch.tensor([[True, True, False, True]]))
        >>> cache.finish()
        >>> cache.earlier_in_window(3)
        3
        """
        real = self._tokens.real
        if real is None:
            return min(self.length, window - 1)
        backwards = real.flip(-1)
        used = backwards & (backwards.cumsum(-1) < window)
        return int((used * torch.arange(1, self.length + 1, device=used.device)).max())

    def rewind(self, length: int) -> None:
        """Goes back to the first `length` tokens.

        Raises:
            ValueError: The cache holds fewer, or a layer does not keep the state that it had there.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"The cache holds {self.length} tokens: it cannot go back to {length}.")
        stuck = [type(layer).__name__ for layer, slot in self._slots if not slot.can_rewind(length)]
        if stuck:
            raise ValueError(
                f"The cache cannot go back from {self.length} to {length} tokens: {stuck[0]} does not keep the state "
                f"that it had there. Make a copy of the cache at that length, or go back to 0."
            )
        for _, slot in self._slots:
            slot.rewind(length)
        self._tokens, self._staged = self._tokens.first(length), None

    def select_rows(self, rows: Tensor) -> None:
        """Makes row i what row `rows[i]` was; `rows` (B',) may repeat rows and leave rows out."""
        for _, slot in self._slots:
            slot.select_rows(rows)
        self.batch = rows.shape[0]
        self._tokens, self._staged = self._tokens.select_rows(rows), None

    def copy(self, length: int | None = None) -> Self:
        """A cache of the same tokens with room for `length` in all; neither sees what becomes of the other.

        Raises:
            ValueError: `length` is less than the cache holds.
        """
        capacity = self.capacity if length is None else length
        if capacity < self.length:
            raise ValueError(f"The cache holds {self.length} tokens: a copy with room for {capacity} is too short.")
        copied = type(self)(self.batch, capacity)
        copied._tokens = self._tokens
        copied._structure_version = self._structure_version
        copied._slots = [(layer, slot.copy(capacity)) for layer, slot in self._slots]
        return copied

    def _mismatch(self, what: str) -> str:
        return (
            f"The calls that filled this cache made {len(self._slots)} stateful calls, but in this one {what}. "
            f"The layers that a cache is used with must not change: start again with a new cache."
        )

    def __repr__(self) -> str:
        return f"Cache(batch={self.batch}, length={self.length} of {self.capacity})"


class KVCache(SymbolicCall):
    """Adds the keys and values of earlier calls in front of the new ones.

    Called with (query, key, value), each (B, H, T, D); returns (query, keys, values), with keys and values
    (B, H, S, D). Without the context entry `("inputs", "cache")` it changes nothing.

    Args:
        window: To how many tokens a token attends, itself included, where it is not all: then S are only the last
            tokens, those in the window of any new one, and earlier ones are dropped as calls go on.

    Raises:
        ValueError: `window` is less than one, or, with a cache, inputs are not of the cache's batch, dtype or device.

    >>> query, key, value = torch.zeros(1, 4, 3, 8), torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 8)
    >>> KVCache()(query, key, value)[1] is key
    True
    """

    if TYPE_CHECKING:

        def __call__(
            self, query: Tensor, key: Tensor, value: Tensor, cache: Cache | None = None
        ) -> tuple[Tensor, Tensor, Tensor]: ...

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise ValueError(f"A token attends to itself at least, so the window is 1 or more; received {window}.")
        self.window = window
        self.reads = {"cache": Read("inputs", "cache", default=None)}

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if cache is None:
            return query, key, value
        slot = cache.slot(self, KeyValueSlot)
        if key.shape[-2] != cache.new_tokens:
            raise ValueError(
                f"KVCache received keys of shape {tuple(key.shape)} in a call of {cache.new_tokens} new tokens. A "
                f"cache is for attention of the tokens to themselves: (batch, heads, {cache.new_tokens}, head_dim)."
            )
        if self.window is None:
            return query, *slot.extend(key, value)
        keys, values = slot.extend(key, value, partial(cache.earlier_in_window, self.window))
        if cache.padding_mask is None:
            # What is kept a while longer is in no window.
            used = min(keys.shape[-2], self.window - 1 + cache.new_tokens)
            keys, values = (held.narrow(-2, held.shape[-2] - used, used) for held in (keys, values))
        return query, keys, values

    def extra_repr(self) -> str:
        return "" if self.window is None else f"window={self.window}"
