"""torch's own layers, under torch's names.

Each is a subclass that adds nothing but a typed call: `sl.Linear` and `torch.nn.Linear` take the same arguments, hold
the same parameters and give the same numbers, and selecting by `nn.Linear` finds both. Arguments and errors are torch's
and documented there; what is written here is the idea, the shapes, and an example.

What is not here is a leaf as well: any `torch.nn.Module` is.
"""

from __future__ import annotations

from suture.layers.torch_layers import (
    activations,
    convolutions,
    dropouts,
    normalisations,
    pooling,
    projections,
    resampling,
)
from suture.layers.torch_layers.activations import *  # noqa: F403
from suture.layers.torch_layers.convolutions import *  # noqa: F403
from suture.layers.torch_layers.dropouts import *  # noqa: F403
from suture.layers.torch_layers.normalisations import *  # noqa: F403
from suture.layers.torch_layers.pooling import *  # noqa: F403
from suture.layers.torch_layers.projections import *  # noqa: F403
from suture.layers.torch_layers.resampling import *  # noqa: F403

__all__: list[str] = []
__all__ += activations.__all__
__all__ += convolutions.__all__
__all__ += dropouts.__all__
__all__ += normalisations.__all__
__all__ += pooling.__all__
__all__ += projections.__all__
__all__ += resampling.__all__
