"""Layers that change the shape of a tensor, or take a part of it, and compute nothing.

Dimensions are counted as torch counts them: the batch is 0, negative ones count from the end. `Reshape` alone leaves
the batch out. All are called with one tensor and give one, a view where torch can make one.

Shapes: B rows, any other dimensions (...).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from suture.layers.torch_layers.call import OfOneTensor


class Reshape(OfOneTensor):
    """The same elements of each row in another shape: (B, ...) to (B, *shape).

    The batch dimension stays what it is, unlike in `torch.reshape`; one size may be -1, and is then what remains.

    Raises:
        ValueError: A size that is not positive, several of -1, or elements of a row that do not fill the shape.

    >>> Reshape(4, -1)(torch.zeros(2, 12)).shape
    torch.Size([2, 4, 3])
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        if any(size < 1 and size != -1 for size in shape) or shape.count(-1) > 1:
            raise ValueError(f"Reshape takes sizes of at least 1, one of them perhaps -1; received {shape}.")
        self.shape = shape
        self._known = math.prod(size for size in shape if size != -1)

    def forward(self, x: Tensor) -> Tensor:
        size, known = x.shape[1:].numel(), self._known
        if x.dim() == 0 or (size % known if -1 in self.shape else size != known):
            raise ValueError(
                f"Reshape{self.shape} shapes the elements of each row, {known}"
                f"{' or a multiple' if -1 in self.shape else ''} of them. Received a tensor of shape {tuple(x.shape)}: "
                f"{f'rows of {size}' if x.dim() else 'it has no rows'}. The batch dimension is not part of the shape."
            )
        return x.reshape(x.shape[0], *[size // known if length == -1 else length for length in self.shape])

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.shape))


class Flatten(torch.nn.Flatten, OfOneTensor):
    """Joins the dimensions `start_dim` to `end_dim`, by default all but the batch: (B, ...) to (B, elements).

    Raises torch's `IndexError` for a dimension that is not there.

    >>> Flatten()(torch.zeros(2, 3, 4)).shape, Flatten(0, 1)(torch.zeros(2, 3, 4)).shape
    (torch.Size([2, 12]), torch.Size([6, 4]))
    """


class Unflatten(torch.nn.Unflatten, OfOneTensor):
    """Splits the dimension `dim` into several of the sizes `unflattened_size`, which undoes `Flatten`.

    Raises torch's `RuntimeError` where the sizes do not multiply to the dimension.

    >>> Unflatten(-1, (3, 4))(torch.zeros(2, 12)).shape
    torch.Size([2, 3, 4])
    """


class Transpose(OfOneTensor):
    """Exchanges two dimensions. Raises `IndexError` for one that is not there.

    >>> Transpose(1, 2)(torch.zeros(2, 3, 4)).shape
    torch.Size([2, 4, 3])
    """

    def __init__(self, dim0: int, dim1: int) -> None:
        super().__init__()
        self.dim0 = dim0
        self.dim1 = dim1

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(_dimension(self, x, self.dim0), _dimension(self, x, self.dim1))

    def extra_repr(self) -> str:
        return f"{self.dim0}, {self.dim1}"


class Permute(OfOneTensor):
    """Puts the dimensions, the batch among them, in the given order: dimension i of the result was `dims[i]`.

    Raises:
        ValueError: `dims` has a dimension twice, or another number of dimensions arrives.
        IndexError: One of them is not there.

    >>> Permute(0, 3, 1, 2)(torch.zeros(2, 8, 9, 3)).shape
    torch.Size([2, 3, 8, 9])
    """

    def __init__(self, *dims: int) -> None:
        super().__init__()
        if len({dim % len(dims) for dim in dims}) != len(dims):
            raise ValueError(f"Permute names each dimension once, counted from 0; received {dims}.")
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != len(self.dims):
            raise ValueError(
                f"Permute{self.dims} orders {len(self.dims)} dimensions, the batch among them. "
                f"Received a tensor of shape {tuple(x.shape)}."
            )
        return x.permute(self.dims)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.dims))


class Squeeze(OfOneTensor):
    """Takes out a dimension of size 1: (..., 1, ...) to (..., ...).

    Raises:
        ValueError: The dimension has another size, which torch would pass over in silence.
        IndexError: It is not there.

    >>> Squeeze(1)(torch.zeros(2, 1, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[_dimension(self, x, self.dim)] != 1:
            raise ValueError(
                f"Squeeze({self.dim}) takes out a dimension of size 1; received a tensor of shape {tuple(x.shape)}. "
                f"To take one element of a larger one: Slicing({self.dim}, start, start + 1) before it."
            )
        return x.squeeze(self.dim)

    def extra_repr(self) -> str:
        return str(self.dim)


class Unsqueeze(OfOneTensor):
    """Puts in a dimension of size 1, which is dimension `dim` of the result: (..., ...) to (..., 1, ...).

    Raises torch's `IndexError` where there are not as many dimensions.

    >>> Unsqueeze(1)(torch.zeros(2, 4)).shape
    torch.Size([2, 1, 4])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(self.dim)

    def extra_repr(self) -> str:
        return str(self.dim)


class Slicing(OfOneTensor):
    """The part `[start:end:step]` of one dimension: a view, as Python slices.

    Negative places count from the end, and what is beyond the end is left out: a slice may be shorter than asked for,
    or empty.

    Raises:
        ValueError: `step` is less than 1.
        IndexError: The dimension is not there.

    >>> Slicing(dim=1, start=-2)(torch.tensor([[1, 2, 3, 4]]))
    tensor([[3, 4]])
    >>> Slicing(dim=1, start=0, end=4, step=2)(torch.tensor([[1, 2, 3, 4]]))
    tensor([[1, 3]])
    """

    def __init__(self, dim: int, start: int = 0, end: int | None = None, step: int = 1) -> None:
        super().__init__()
        if step < 1:
            raise ValueError(f"Slicing goes forwards, by a step of at least 1; received step={step}.")
        self.dim = dim
        self.start = start
        self.end = end
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        before = _dimension(self, x, self.dim)
        return x[(slice(None),) * before + (slice(self.start, self.end, self.step),)]

    def extra_repr(self) -> str:
        end = "" if self.end is None else self.end
        step = "" if self.step == 1 else f":{self.step}"
        return f"dim={self.dim}, {self.start}:{end}{step}"


def _dimension(layer: torch.nn.Module, x: Tensor, dim: int) -> int:
    """`dim` counted from the front. Raises `IndexError` where `x` does not have it."""
    if not -x.dim() <= dim < x.dim():
        raise IndexError(
            f"{type(layer).__name__}({layer.extra_repr()}) needs dimension {dim}; "
            f"received a tensor of shape {tuple(x.shape)}, whose dimensions are 0 to {x.dim() - 1}."
        )
    return dim % x.dim()
