"""What every symbolic value looks like: a fake tensor, which has a shape, a dtype and a device, and no values.

A graph is made with concrete sizes, since ordinary layers compare and compute with them. A dimension that an input
leaves open has a size here that says which: running the recorded calls again with other sizes tells which dimensions
of a result depend on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from suture.layers.fakes import quiet
from suture.layers.node import node_of

Dimension = int | str | None
"""The size of a dimension; or its name, where equal names are equal sizes; or None, where equal positions are."""

_FIRST = (2, 5, 67, 73, 79, 83)
_OTHER = (3, 7, 71, 89, 97, 101)
_names: dict[str, int] = {}
_lock = threading.RLock()


@dataclass(frozen=True)
class Sizes:
    """Which size stands for an open dimension: of a position, or of a name."""

    by_position: tuple[int, ...]
    named_from: int

    def of(self, shape: tuple[Dimension, ...]) -> tuple[int, ...]:
        return tuple(self._of(position, dimension) for position, dimension in enumerate(shape))

    def _of(self, position: int, dimension: Dimension) -> int:
        if isinstance(dimension, str):
            return self.named_from + 6 * _names.setdefault(dimension, len(_names))
        if dimension is None:
            return self.by_position[min(position, len(self.by_position) - 1)]
        return dimension


FIRST = Sizes(_FIRST, named_from=7)
OTHER = Sizes(_OTHER, named_from=11)


@cache
def fake_mode() -> FakeTensorMode:
    """The one mode of all fakes, so that values of several graphs can meet."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_tensor(shape: tuple[int, ...], dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    """A tensor without values."""
    with _lock, fake_mode():
        return torch.empty(shape, dtype=dtype, device=device)


def fake_strided(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor without values that lies in memory like another."""
    with _lock, fake_mode():
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def run_on_examples(target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What `target` gives for fakes. Nothing is computed, and nothing of a layer is touched."""
    with _lock, quiet(), fake_mode() as mode, torch.no_grad():
        if isinstance(target, nn.Module):
            return nn.Module.__call__(_stand_in(target, mode), *args, **kwargs)
        return target(*args, **kwargs)


def _stand_in(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A module with the parameters of another, which keeps for itself what it sets or writes while it runs."""
    if node_of(module) is not None:
        return module
    state: dict[str, Any] = vars(module)
    own = [*state["_parameters"].values(), *state["_buffers"].values()]
    if any(map(is_lazy, own)):
        raise TypeError(f"{type(module).__name__} does not know its shapes before its first call. Call it once.")
    standing: nn.Module = object.__new__(type(module))
    buffers = {name: None if buffer is None else mode.from_tensor(buffer) for name, buffer in state["_buffers"].items()}
    children = {name: None if child is None else _stand_in(child, mode) for name, child in state["_modules"].items()}
    vars(standing).update(state | {"_buffers": buffers, "_modules": children})
    return standing


def look_alike(one: Any, other: Any) -> bool:
    """Whether two structures of examples are such that a layer would do the same with them."""
    ours, ours_spec = pytree.tree_flatten(one)
    theirs, theirs_spec = pytree.tree_flatten(other)
    return ours_spec == theirs_spec and all(map(_look_alike, ours, theirs))


def _look_alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if not (isinstance(one, FakeTensor) and isinstance(other, FakeTensor)):
        return type(one) is type(other) and isinstance(one, int | float | str | torch.dtype) and one == other
    return (one.shape, one.stride(), one.dtype, one.device) == (other.shape, other.stride(), other.dtype, other.device)
