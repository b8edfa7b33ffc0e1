"""Pairs of layers of low rank, `down` and `up`, beside a layer that multiplies by a matrix.

Shapes: I inputs and O outputs of the layer beside, R the rank, G the groups of a convolution, K its kernel.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from suture import layers as sl

SUPPORTED = "nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, and the Conv1D of transformers"

Pair = dict[str, nn.Module]


class Scale(nn.Module):
    """Multiplies by `factor`, which is a tensor, so that changing it compiles nothing anew: (...) to the same.

    The factor has the dtype of the tree around it.

    >>> Scale(0.5)(torch.ones(2))
    tensor([0.5000, 0.5000])
    """

    factor: Tensor

    def __init__(self, factor: float, device: torch.device | None = None) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(float(factor), device=device))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return "" if self.factor.is_meta else f"{self.factor.item():.3g}"


class Zeros(nn.Module):
    """Zeros (..., O) for inputs (..., I): the part of a fused projection that is left alone.

    >>> Zeros(3)(torch.ones(1, 2))
    tensor([[0., 0., 0.]])
    """

    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return str(self.out_features)


def pair_beside(layer: nn.Module, rank: int, out_features: int | None = None) -> Pair:
    """Makes `down` and `up` to stand beside a layer: from its inputs to rank R, and on to its outputs, which are zero.

    `down` starts as torch starts a layer (Kaiming), `up` at zero. Beside a convolution `down` is a convolution of the
    same kernel, and `up` one of kernel 1; where it has groups, so have they, and each group has R channels of its own.

    Args:
        layer: What they stand beside.
        rank: R.
        out_features: The outputs of `up`, where it makes only some of those of `layer`.

    Raises:
        TypeError: `layer` is not one of those supported.
    """
    ensure_supported(layer)
    device = cast("Tensor", layer.weight).device
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        kind = {1: sl.Conv1d, 2: sl.Conv2d, 3: sl.Conv3d}[len(layer.kernel_size)]
        settings = {
            name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
        }
        inner, groups = rank * layer.groups, layer.groups
        make = cast("Callable[..., nn.Module]", kind)
        down = make(layer.in_channels, inner, groups=groups, bias=False, device=device, **settings)
        up = make(inner, layer.out_channels, 1, groups=groups, bias=False, device=device)
    else:
        outputs, inputs = matrix_shape(layer)
        down = sl.Linear(inputs, rank, bias=False, device=device)
        up = sl.Linear(rank, outputs if out_features is None else out_features, bias=False, device=device)
    nn.init.zeros_(cast("Tensor", up.weight))
    return {"down": down, "up": up}


def product(pair: sl.Chain, layer: nn.Module) -> Tensor:
    """What a pair beside `layer` adds to its weight, as a matrix (O, I * K / G) in at least float32."""
    weights = (cast("Tensor", pair[name].weight) for name in ("down", "up"))
    down, up = (weight.to(torch.promote_types(weight.dtype, torch.float32)) for weight in weights)
    groups = layer.groups if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) else 1
    rank = down.shape[0] // groups
    return torch.bmm(up.reshape(groups, -1, rank), down.reshape(groups, rank, -1)).flatten(0, 1)


def with_added(layer: nn.Module, matrix: Tensor) -> nn.Module:
    """A copy of `layer` with a weight of its own, to which a matrix (O, I * K / G) is added; its bias is shared.

    Raises:
        TypeError: the weight is no parameter, but computed.
    """
    parameters = dict(layer.named_parameters())
    if "weight" not in parameters:
        raise TypeError(
            f"The weight of this {type(layer).__name__} is computed in every call, so nothing can be merged into it. "
            f"It has: {', '.join(parameters)}. Remove the parametrization first."
        )
    weight = parameters["weight"]
    tensors = {id(tensor): tensor for tensor in (*layer.parameters(), *layer.buffers())}
    copied = copy.deepcopy(layer, cast("Any", tensors))
    added = matrix.t() if is_transposed(layer) else matrix.reshape(weight.shape)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    total = (weight.detach().to(dtype) + added.to(dtype)).to(weight.dtype)
    copied.weight = nn.Parameter(total, requires_grad=weight.requires_grad)
    return copied


def matrix_shape(layer: nn.Module) -> tuple[int, int]:
    """The outputs O and inputs I of a layer that multiplies by a matrix, whichever way it stores that."""
    rows, columns = cast("Tensor", layer.weight).shape
    return (columns, rows) if is_transposed(layer) else (rows, columns)


def is_transposed(layer: nn.Module) -> bool:
    """Whether a layer is the Conv1D of transformers: a linear layer that stores its weight as (I, O)."""
    # By its name, so that transformers need not be imported to look at a model that has nothing of it.
    return any(kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in type(layer).mro())


def ensure_supported(layer: nn.Module) -> None:
    """Refuses what a pair of low rank cannot stand beside.

    Raises:
        TypeError: naming what is supported.
    """
    kind = type(layer).__name__
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) and not is_transposed(layer):
        raise TypeError(f"LoRA adapts {SUPPORTED}. Received: {kind}.")
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        raise TypeError(
            f"LoRA cannot adapt this {kind}: nn.MultiheadAttention reads its weight and never calls it, so nothing "
            f"would change. Replace the attention by sl.SelfAttention, whose projections are called."
        )
    if isinstance(layer, LazyModuleMixin):
        raise TypeError(f"LoRA cannot adapt this {kind} before it knows its size. Call the model once first.")
    weight = cast("object", layer.weight)
    size = None
    if isinstance(layer, nn.Linear):
        size = layer.out_features * layer.in_features
    elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        size = layer.out_channels * layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    is_plain = isinstance(weight, Tensor) and weight.is_floating_point() and weight.element_size() > 1
    if not isinstance(weight, Tensor) or not is_plain or size not in (None, weight.numel()):
        received = f"{weight.dtype} {tuple(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(
            f"LoRA adapts {SUPPORTED}, with weights of 16 bits or more. "
            f"Received: {kind} with a weight of {received}, which is quantised. Dequantise it first."
        )
