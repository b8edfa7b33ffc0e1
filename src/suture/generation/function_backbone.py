"""A backbone that is not a tree: a function, or any torch module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from suture.layers import Composite, Context, Read

INPUTS = ("padding_mask", "attention_mask", "positions", "embeddings", "cache")
"""The optional inputs that a backbone may take."""


class FunctionBackbone(Composite):
    """Calls a function, or a torch module, with ids (B, T) and those of the optional inputs that its signature names.

    An input that was not given is left out. Where the signature has no default for them, a padding mask says that all
    is real, and positions count what is real.

    Raises `TypeError` for what cannot be called.

    >>> def embed(token_ids, padding_mask=None):
    ...     return torch.nn.functional.one_hot(token_ids, 5).float()
    >>> backbone = FunctionBackbone(embed)
    >>> backbone.context_inputs
    (Read('inputs', 'padding_mask', default=None),)
    >>> backbone(torch.zeros(1, 3, dtype=torch.long)).shape
    torch.Size([1, 3, 5])
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        if not callable(function):
            raise TypeError(
                f"A backbone is a tree, a graph, a module or a function: something that is called with token ids and "
                f"returns hidden states. Received {function!r}."
            )
        # A module is owned, so that its parameters are the model's.
        is_module = isinstance(function, nn.Module)
        super().__init__(*([function] if is_module else []))
        self._function = None if is_module else function
        # A module's own signature is that of any module, unless it says what it takes, as a graph does.
        asked = function.forward if is_module and not hasattr(function, "__signature__") else function
        parameters = inspect.signature(asked).parameters
        names = [name for name in INPUTS if name in parameters]
        self._inputs = {name: Read("inputs", name, default=None) for name in names}
        self.reads = self._inputs
        self._required = [name for name in names if parameters[name].default is inspect.Parameter.empty]

    @property
    def function(self) -> Callable[..., Tensor]:
        """What is called."""
        return self[0] if self._function is None else self._function

    def init_cache(self, batch: int, length: int) -> Any:
        """An empty cache, as the function makes one. Raises `TypeError` where it takes a cache and makes none."""
        make = getattr(self.function, "init_cache", None)
        if make is None:
            raise TypeError(
                f"{name_of(self.function)} takes a cache, so it must have a method init_cache(batch, length) that "
                f"makes an empty one."
            )
        return make(batch, length)

    def forward(self, token_ids: Tensor, *, context: Context | None = None) -> Tensor:
        context = Context() if context is None else context
        inputs = {name: context.read(read) for name, read in self._inputs.items()}
        real = inputs.get("padding_mask")
        real = torch.ones_like(token_ids, dtype=torch.bool) if real is None else real
        defaults = {"padding_mask": lambda: real, "positions": lambda: positions_of(real)}
        for name in self._required:
            if inputs[name] is None and name in defaults:
                inputs[name] = defaults[name]()
        return self.function(token_ids, **{name: value for name, value in inputs.items() if value is not None})

    def extra_repr(self) -> str:
        return "" if self._function is None else name_of(self._function)


def positions_of(real: Tensor) -> Tensor:
    """The positions (B, S) of tokens of which some are `real` (B, S): only these count.

    >>> positions_of(torch.tensor([[False, True, True]]))
    tensor([[0, 0, 1]])
    """
    return (real.cumsum(-1) - 1).clamp_(min=0)


def name_of(function: object) -> str:
    """A function's name, or that of an object's class."""
    return getattr(function, "__name__", type(function).__name__)
