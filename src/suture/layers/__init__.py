"""The layers a model is written in.

Any `torch.nn.Module` can be a leaf. Composites call their children by one rule: a tuple result is spread over the next
child's arguments, anything else is one argument.

* In sequence: `Chain`, `Stack`, `Residual`, `Passthrough`.
* Side by side: `Parallel`, `Distribute`, `Sum`, `Product`, `Concatenate`.
* Arguments and context: `Identity`, `GetArg`, `Lambda`, `UseContext`, `SetContext`; for reads, `Read`, `Derived`.
* Attention: `SelfAttention`, `SplitHeads`, `MergeHeads`, `Rotary`, `KVCache`, `ScaledDotProductAttention`.
* Feed-forward: `FeedForward`, `GatedFeedForward`, `MultiLinear`.
* torch's own, under torch's names: `Linear`, `Embedding`, `RMSNorm`, `Conv2d`, `Dropout`, `SiLU`, ...
"""

from __future__ import annotations

from suture.layers import torch_layers
from suture.layers.attention import MergeHeads, ScaledDotProductAttention, SelfAttention, SplitHeads
from suture.layers.basic import GetArg, Identity, Lambda, UseContext
from suture.layers.cache import Cache, KVCache
from suture.layers.calls import one_call
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
from suture.layers.feedforward import FeedForward, GatedFeedForward, MultiLinear
from suture.layers.rotary import LinearScaling, Llama3Scaling, Rotary
from suture.layers.slots import StateSlot
from suture.layers.torch_layers import *  # noqa: F403

__all__ = [
    "REQUIRED",
    "Cache",
    "Chain",
    "Checkpoint",
    "Composite",
    "Concatenate",
    "Context",
    "Derived",
    "Distribute",
    "FeedForward",
    "GatedFeedForward",
    "GetArg",
    "Identity",
    "KVCache",
    "Lambda",
    "LinearScaling",
    "Llama3Scaling",
    "MergeHeads",
    "MissingContextError",
    "MultiLinear",
    "Parallel",
    "Passthrough",
    "Product",
    "Read",
    "Residual",
    "Rotary",
    "ScaledDotProductAttention",
    "SelfAttention",
    "SetContext",
    "SplitHeads",
    "Stack",
    "StateSlot",
    "Sum",
    "UseContext",
    "one_call",
]
__all__ += torch_layers.__all__
