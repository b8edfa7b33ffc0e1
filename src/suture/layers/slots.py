"""What a stateful layer keeps between calls of its model: a slot for each of its call sites.

A slot holds the state after the last call that ended well. What the running call adds is staged: it becomes the state
at `commit`, and where the call raised it is dropped at `discard`.

`KeyValueSlot` is what attention keeps. A recurrent layer keeps a `StateSlot`. Another kind of state is another
subclass of `Slot`.

Shapes: B rows, H heads, S cached tokens, T new tokens, D width of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor


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
    """The keys and values of all tokens so far, each (B, H, S, D).

    Without gradients they are written into room for `capacity` tokens, made at first use in the dtype and on the
    device of what arrives. With gradients they are joined into new tensors instead: a tensor that backward needs may
    not be written to.

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
        self._has_room = False
        self._staged: tuple[Tensor, Tensor] | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of all tokens, the new ones (B, H, T, D) at the end.

        Raises:
            ValueError: The new ones are not of the shape, dtype or device of the cache.
        """
        self._check(key)
        new_tokens = key.shape[2]
        length = self.length + new_tokens
        if torch.is_grad_enabled():
            self._staged = (key, value)
            if self._held is not None:
                past_key, past_value = self._past(self._held)
                self._staged = (torch.cat((past_key, key), 2), torch.cat((past_value, value), 2))
            return self._staged
        keys, values = self._held if self._held is not None and self._has_room else self._make_room(key, value)
        keys.narrow(2, self.length, new_tokens).copy_(key)
        values.narrow(2, self.length, new_tokens).copy_(value)
        return keys.narrow(2, 0, length), values.narrow(2, 0, length)

    def commit(self, length: int) -> None:
        if self._staged is not None:
            self._held, self._has_room = self._staged, False
        self._staged, self.length = None, length

    def discard(self) -> None:
        self._staged = None

    def can_rewind(self, length: int) -> bool:
        return length <= self.length

    def rewind(self, length: int) -> None:
        self._staged, self.length = None, length

    def select_rows(self, rows: Tensor) -> None:
        if self._held is not None:
            keys, values = self._past(self._held)
            self._held, self._has_room = (keys.index_select(0, rows), values.index_select(0, rows)), False
        self.batch = rows.shape[0]

    def copy(self, capacity: int) -> Self:
        copy = type(self)(self.batch, capacity)
        copy._held, copy.length = self._held, self.length
        if self._held is not None and self._has_room:
            copy._make_room(*self._held)
        return copy

    def _past(self, held: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return held[0].narrow(2, 0, self.length), held[1].narrow(2, 0, self.length)

    def _make_room(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Room for `capacity` tokens like these, with what is held so far at its start."""
        # Made outside inference mode, whatever the mode of this call, so that any later call can write to it.
        with torch.inference_mode(False):
            room = (self._empty(key), self._empty(value))
        if self._held is not None:
            for new, past in zip(room, self._past(self._held), strict=True):
                new.narrow(2, 0, self.length).copy_(past)
        self._held, self._has_room = room, True
        return room

    def _empty(self, new: Tensor) -> Tensor:
        shape = (*new.shape[:2], self.capacity, new.shape[3])
        return torch.empty(shape, dtype=new.dtype, device=new.device)

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
