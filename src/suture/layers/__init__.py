"""The layers a model is written in.

Any `torch.nn.Module` can be a leaf. Composites call their children by one rule: a tuple result is spread over the next
child's arguments, anything else is one argument.

* In sequence: `Chain`, `Stack`, `Residual`, `Passthrough`.
* Side by side: `Parallel`, `Distribute`, `Sum`, `Product`, `Matmul`, `Concatenate`.
* Arguments and context: `Identity`, `GetArg`, `Lambda`, `UseContext`, `SetContext`; for reads, `Read`, `Derived`.
* Attention: `SelfAttention`, `CrossAttention`, `Attention`; of `SplitHeads`, `MergeHeads`, `KVCache`,
  `ScaledDotProductAttention`, `SoftCappedAttention`.
* Positions: `LearnedPositions`, `SinusoidalPositions`, `Rotary`, `ALiBi`.
* Feed-forward: `FeedForward`, `GatedFeedForward`, `MultiLinear`; `SoftCap`.
* Shapes and casts: `Reshape`, `Flatten`, `Unflatten`, `Transpose`, `Permute`, `Squeeze`, `Unsqueeze`, `Slicing`,
  `Interpolate`, `ToDtype`, `ToDevice`.
* torch's own, under torch's names: `Linear`, `Embedding`, `RMSNorm`, `Conv2d`, `Dropout`, `SiLU`, ...
"""

from __future__ import annotations

from suture.layers import torch_layers
from suture.layers.alibi import ALiBi
from suture.layers.attend import ScaledDotProductAttention
from suture.layers.attention import Attention, CrossAttention, SelfAttention
from suture.layers.basic import GetArg, Identity, Lambda, UseContext
from suture.layers.cache import Cache, KVCache
from suture.layers.calls import one_call
from suture.layers.casts import ToDevice, ToDtype
from suture.layers.chain import (
    Chain,
    Concatenate,
    Distribute,
    Parallel,
    Passthrough,
    Product,
    Residual,
    SetContext,
    Stack,
    Sum,
)
from suture.layers.checkpoint import Checkpoint
from suture.layers.composite import Composite
from suture.layers.context import REQUIRED, Context, Derived, MissingContextError, Read
from suture.layers.description import register_own
from suture.layers.feedforward import FeedForward, GatedFeedForward, MultiLinear
from suture.layers.heads import MergeHeads, SplitHeads
from suture.layers.interpolate import Interpolate
from suture.layers.matmul import Matmul
from suture.layers.positions import LearnedPositions, SinusoidalPositions
from suture.layers.rotary import LinearScaling, Llama3Scaling, Rotary
from suture.layers.shapes import Flatten, Permute, Reshape, Slicing, Squeeze, Transpose, Unflatten, Unsqueeze
from suture.layers.slots import StateSlot
from suture.layers.soft_cap import SoftCap, SoftCappedAttention
from suture.layers.torch_layers import *  # noqa: F403

__all__ = [
    "REQUIRED",
    "ALiBi",
    "Attention",
    "Cache",
    "Chain",
    "Checkpoint",
    "Composite",
    "Concatenate",
    "Context",
    "CrossAttention",
    "Derived",
    "Distribute",
    "FeedForward",
    "Flatten",
    "GatedFeedForward",
    "GetArg",
    "Identity",
    "Interpolate",
    "KVCache",
    "Lambda",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "Matmul",
    "MergeHeads",
    "MissingContextError",
    "MultiLinear",
    "Parallel",
    "Passthrough",
    "Permute",
    "Product",
    "Read",
    "Reshape",
    "Residual",
    "Rotary",
    "ScaledDotProductAttention",
    "SelfAttention",
    "SetContext",
    "SinusoidalPositions",
    "Slicing",
    "SoftCap",
    "SoftCappedAttention",
    "SplitHeads",
    "Squeeze",
    "Stack",
    "StateSlot",
    "Sum",
    "ToDevice",
    "ToDtype",
    "Transpose",
    "Unflatten",
    "Unsqueeze",
    "UseContext",
    "one_call",
]
__all__ += torch_layers.__all__

for _name in __all__:
    register_own(globals()[_name])
