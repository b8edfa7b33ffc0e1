"""What a stateful layer keeps between calls of its model: a slot for each of its call sites.

A slot holds the state after the last call that ended well. What the running call adds is staged: it becomes the state
at `commit`, and where the call raised it is dropped at `discard`.

`KeyValueSlot` is what attention keeps. A recurrent layer keeps a `StateSlot`. Another kind of state is another
subclass of `Slot`.

Shapes: B rows, H heads, S cached tokens, T new tokens, D width of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

ROOM_AHEAD = 16
"""For how many tokens at least there is room when early ones were dropped, so that few calls drop and copy."""


class Slot(ABC):
    """The state of one stateful layer at one call site: `batch` rows, after `length` of at most `capacity` tokens."""

    def __init__(self, batch: int, capacity: int) -> None:
        self.batch = batch
        self.capacity = capacity
        self.length = 0

    @abstractmethod
    def commit(self, length: int) -> None:
        """Makes what was staged the state, which now stands for `length` tokens."""

    @abstractmethod
    def discard(self) -> None:
        """Drops what was staged by a call that raised."""

    @abstractmethod
    def can_rewind(self, length: int) -> bool:
        """Whether the state after the first `length` tokens is still known."""

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Goes back to the state after the first `length` tokens, where `can_rewind`."""

    @abstractmethod
    def select_rows(self, rows: Tensor) -> None:
        """Makes row i what row `rows[i]` was; `rows` may repeat and leave out."""

    @abstractmethod
    def copy(self, capacity: int) -> Self:
        """A slot with the same state and another capacity, which does not see what becomes of this one."""


class StateSlot(Slot):
    """A state of fixed size, such as a recurrent layer's: one tensor (B, ...), replaced at every call.

    It remembers nothing of earlier tokens, so it can only be rewound to the start.

    >>> slot = StateSlot(batch=2, capacity=8)
    >>> slot.stage(torch.ones(2, 3))
    >>> slot.state is None
    True
    >>> slot.commit(length=1)
    >>> slot.state.shape
    torch.Size([2, 3])
    """

    def __init__(self, batch: int, capacity: int) -> None:
        super().__init__(batch, capacity)
        self.state: Tensor | None = None
        self._staged: Tensor | None = None

    def stage(self, state: Tensor) -> None:
        """Gives the state after the tokens of this call."""
        self._staged = state

    def commit(self, length: int) -> None:
        if self._staged is not None:
            self.state = self._staged
        self._staged, self.length = None, length

    def discard(self) -> None:
        self._staged = None

    def can_rewind(self, length: int) -> bool:
        return length in (0, self.length)

    def rewind(self, length: int) -> None:
        self.state = None if length == 0 else self.state
        self._staged, self.length = None, length

    def select_rows(self, rows: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.index_select(0, rows)
        self.batch = rows.shape[0]

    def copy(self, capacity: int) -> Self:
        copy = type(self)(self.batch, capacity)
        copy.state, copy.length = self.state, self.length
        return copy


class KeyValueSlot(Slot):
    """The keys and values of the tokens so far, each (B, H, S, D): of all of them, or of those still of use.

    Without gradients they are written into room for `capacity` tokens, or for a little more than those of use, made at
    first use in the dtype and on the device of what arrives. With gradients they are joined into new tensors instead: a
    tensor that backward needs may not be written to.

    >>> slot = KeyValueSlot(batch=1, capacity=8)
    >>> with torch.no_grad():
    ...     keys, values = slot.extend(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    ...     slot.commit(length=3)
    ...     keys, values = slot.extend(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    >>> keys.shape
    torch.Size([1, 2, 4, 4])
    """

    def __init__(self, batch: int, capacity: int) -> None:
        super().__init__(batch, capacity)
        self._held: tuple[Tensor, Tensor] | None = None
        self._size = 0
        """The number of tokens held: the last ones."""
        self._has_room = False
        self._staged: tuple[Tensor, Tensor] | None = None
        self._trimmed_at = 0
        """How many tokens there were when the first ones were last dropped."""

    def extend(self, key: Tensor, value: Tensor, of_use: Callable[[], int] | None = None) -> tuple[Tensor, Tensor]:
        """The keys and values of the tokens so far, the new ones (B, H, T, D) at the end.

        Args:
            key: (B, H, T, D).
            value: (B, H, T, D).
            of_use: How many of the earlier tokens, the last ones, are needed now or later. None: all. It is only asked
                when tokens are dropped; until then earlier ones are among the results.

        Raises:
            ValueError: The new ones are not of the shape, dtype or device of the cache.
        """
        self._check(key)
        if torch.is_grad_enabled():
            if of_use is not None:
                self._trim(of_use())
            self._staged = (key, value)
            if self._held is not None:
                past_key, past_value = self._past(self._held)
                self._staged = (torch.cat((past_key, key), 2), torch.cat((past_value, value), 2))
            return self._staged
        new_tokens = key.shape[2]
        keys, values = self._room_for(new_tokens, key, value, of_use)
        keys.narrow(2, self._size, new_tokens).copy_(key)
        values.narrow(2, self._size, new_tokens).copy_(value)
        length = self._size + new_tokens
        return keys.narrow(2, 0, length), values.narrow(2, 0, length)

    def commit(self, length: int) -> None:
        if self._staged is not None:
            self._held, self._has_room = self._staged, False
        self._size += length - self.length
        self._staged, self.length = None, length

    def discard(self) -> None:
        self._staged = None

    def can_rewind(self, length: int) -> bool:
        return length == 0 or self._trimmed_at <= length <= self.length

    def rewind(self, length: int) -> None:
        self._size = max(0, self._size - (self.length - length))
        self._trimmed_at = min(self._trimmed_at, length)
        self._staged, self.length = None, length

    def select_rows(self, rows: Tensor) -> None:
        if self._held is not None:
            keys, values = self._past(self._held)
            self._held, self._has_room = (keys.index_select(0, rows), values.index_select(0, rows)), False
        self.batch = rows.shape[0]

    def copy(self, capacity: int) -> Self:
        copy = type(self)(self.batch, capacity)
        copy._held, copy._size, copy.length = self._held, self._size, self.length
        copy._trimmed_at = self._trimmed_at
        if self._held is not None and self._has_room:
            # As much free room as here, or all of it where nothing is ever dropped.
            room = self._held[0].shape[2]
            copy._make_room(capacity if room >= self.capacity else min(room, capacity), *self._held)
        return copy

    def _past(self, held: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return held[0].narrow(2, 0, self._size), held[1].narrow(2, 0, self._size)

    def _trim(self, of_use: int) -> None:
        """Drops all but the last `of_use` tokens."""
        if self._held is not None and of_use < self._size:
            keys, values = self._past(self._held)
            first = self._size - of_use
            self._held = (keys.narrow(2, first, of_use), values.narrow(2, first, of_use))
            self._size, self._has_room, self._trimmed_at = of_use, False, self.length

    def _room_for(
        self, new_tokens: int, key: Tensor, value: Tensor, of_use: Callable[[], int] | None
    ) -> tuple[Tensor, Tensor]:
        """What is held, with room for the new tokens behind it."""
        if self._held is not None and self._has_room and self._size + new_tokens <= self._held[0].shape[2]:
            return self._held
        room = self.capacity
        if of_use is not None:
            self._trim(of_use())
            room = min(room, self._size + new_tokens + max(ROOM_AHEAD, self._size // 4))
        return self._make_room(room, key, value)

    def _make_room(self, room: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Room for `room` tokens like these, with what is held so far at its start."""
        # Made outside inference mode, whatever the mode of this call, so that any later call can write to it.
        with torch.inference_mode(False):
            made = (_empty(room, key), _empty(room, value))
        if self._held is not None:
            for new, past in zip(made, self._past(self._held), strict=True):
                new.narrow(2, 0, self._size).copy_(past)
        self._held, self._has_room = made, True
        return made

    def _check(self, key: Tensor) -> None:
        if key.dim() != 4 or key.shape[0] != self.batch:
            raise ValueError(
                f"A cache of {self.batch} rows keeps keys and values of shape ({self.batch}, heads, tokens, head_dim); "
                f"received {tuple(key.shape)}. Pass inputs of {self.batch} rows, or make a cache for as many as come."
            )
        if self._held is not None:
            held = self._held[0]
            if (held.dtype, held.device) != (key.dtype, key.device):
                raise ValueError(
                    f"The cache holds keys in {held.dtype} on {held.device}; received {key.dtype} on {key.device}. "
                    f"Make all calls with one cache in one dtype, on one device and under the same autocast."
                )


def _empty(room: int, like: Tensor) -> Tensor:
    return torch.empty((*like.shape[:2], room, like.shape[3]), dtype=like.dtype, device=like.device)
