"""The named inputs of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from suture.graph.examples import FIRST, Dimension, Sizes, fake_tensor
from suture.graph.values import Value
from suture.layers.context import REQUIRED

if TYPE_CHECKING:
    # For a type checker an input is the tensor that it stands for: typed layers and torch's functions take it.
    class _StandsForTensor(Value, Tensor): ...  # pyright: ignore[reportIncompatibleVariableOverride]
else:
    _StandsForTensor = Value


class Input(_StandsForTensor):
    """A named input, from which a graph is built by calling layers and functions with it.

    Args:
        name: How it is given by keyword, and called in errors and pictures.
        shape: The size of each dimension; None for any, or a name, which stands for one size wherever it is used.
            Without a shape it may be anything, such as a cache.
        dtype: What is given must have it. None: any.
        optional: Whether it may be left out; then it is `default`.
        default: What it is when it is left out.
        device: Where the fake tensor that stands for it is.

    Example:
        >>> tokens = Input("token_ids", shape=(None, None), dtype=torch.long)
        >>> tokens
        Input('token_ids', shape=(None, None), dtype=torch.int64)
    """

    def __init__(
        self,
        name: str,
        shape: tuple[Dimension, ...] | None = None,
        dtype: torch.dtype | None = None,
        *,
        optional: bool = False,
        default: Any = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not name.isidentifier():
            raise ValueError(f"The name of an input is that of a keyword argument. Received: {name!r}.")
        if default is not None and not optional:
            raise ValueError(f"The input {name!r} has a default, so it may be left out: say optional=True.")
        self.name = name
        self.shape_wanted = None if shape is None else tuple(shape)
        self.dtype_wanted = dtype
        self.device_wanted = device
        self.optional = optional
        self.default = default if optional else REQUIRED
        super().__init__(self.example_of(FIRST))

    def example_of(self, sizes: Sizes) -> Any:
        """What stands for this input where open dimensions have these sizes."""
        if self.shape_wanted is None:
            return self.default if self.optional else None
        return fake_tensor(sizes.of(self.shape_wanted), self.dtype_wanted, self.device_wanted)

    def check(self, given: Any, path: str) -> None:
        """Refuses what does not fit, for the input at `path` of a structure.

        Raises `TypeError` for what is no such tensor, `ValueError` for its shape.
        """
        if given is None and self.optional:
            return
        if given is None:
            raise TypeError(f"The input {path!r} is required. Received: None.")
        if self.shape_wanted is None:
            return
        if self.shape_wanted == () and isinstance(given, int | float):
            return
        if not isinstance(given, Tensor):
            raise TypeError(
                f"The input {path!r} is a tensor{self._wanted()}. Received: {given!r:.60} ({type(given).__name__})."
            )
        if self.dtype_wanted is not None and given.dtype != self.dtype_wanted:
            raise TypeError(f"The input {path!r} is a tensor{self._wanted()}. Received: one of {given.dtype}.")
        fits = given.dim() == len(self.shape_wanted) and all(
            not isinstance(wanted, int) or size == wanted
            for size, wanted in zip(given.shape, self.shape_wanted, strict=True)
        )
        if not fits:
            raise ValueError(
                f"The input {path!r} is a tensor{self._wanted()}. Received: one of shape {tuple(given.shape)}."
            )

    def _wanted(self) -> str:
        shape = ", ".join("any" if size is None else str(size) for size in self.shape_wanted or ())
        dtype = f" of {self.dtype_wanted}" if self.dtype_wanted is not None else ""
        return f" of shape ({shape}){dtype}"

    def __repr__(self) -> str:
        parts = [repr(self.name)]
        if self.shape_wanted is not None:
            parts.append(f"shape={self.shape_wanted}")
        if self.dtype_wanted is not None:
            parts.append(f"dtype={self.dtype_wanted}")
        if self.optional:
            parts.append("optional=True" if self.default is None else f"optional=True, default={self.default!r}")
        return f"Input({', '.join(parts)})"
