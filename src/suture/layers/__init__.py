"""The layers a model is written in.

Any `torch.nn.Module` can be a leaf. Composites call their children by one rule: a tuple result is spread over the next
child's arguments, anything else is one argument.
"""

from __future__ import annotations

from suture.layers.attention import MergeHeads as MergeHeads
from suture.layers.attention import ScaledDotProductAttention as ScaledDotProductAttention
from suture.layers.attention import SelfAttention as SelfAttention
from suture.layers.attention import SplitHeads as SplitHeads
from suture.layers.basic import GetArg as GetArg
from suture.layers.basic import Identity as Identity
from suture.layers.basic import Lambda as Lambda
from suture.layers.basic import UseContext as UseContext
from suture.layers.cache import Cache as Cache
from suture.layers.cache import KVCache as KVCache
from suture.layers.calls import one_call as one_call
from suture.layers.chain import Chain as Chain
from suture.layers.chain import Concatenate as Concatenate
from suture.layers.chain import Distribute as Distribute
from suture.layers.chain import Parallel as Parallel
from suture.layers.chain import Passthrough as Passthrough
from suture.layers.chain import Product as Product
from suture.layers.chain import Residual as Residual
from suture.layers.chain import SetContext as SetContext
from suture.layers.chain import Stack as Stack
from suture.layers.chain import Sum as Sum
from suture.layers.composite import Composite as Composite
from suture.layers.context import REQUIRED as REQUIRED
from suture.layers.context import Context as Context
from suture.layers.context import Derived as Derived
from suture.layers.context import MissingContextError as MissingContextError
from suture.layers.context import Read as Read
from suture.layers.feedforward import FeedForward as FeedForward
from suture.layers.feedforward import GatedFeedForward as GatedFeedForward
from suture.layers.feedforward import MultiLinear as MultiLinear
from suture.layers.rotary import LinearScaling as LinearScaling
from suture.layers.rotary import Llama3Scaling as Llama3Scaling
from suture.layers.rotary import Rotary as Rotary
from suture.layers.slots import StateSlot as StateSlot
from suture.layers.torch_layers import *  # noqa: F403
