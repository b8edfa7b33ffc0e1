"""Cross-attention: the blocks of a decoder look at a sequence from outside, such as an image or an encoded text.

Shapes: B rows, T tokens, D width of the hidden states, S positions of the sequence from outside.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.layers.description import register
from suture.surgery.adapter import Adapter


class Gate(nn.Module):
    """Multiplies by `tanh(gate)`, a parameter that is zero at the start: (...) to the same.

    >>> Gate()(torch.ones(2))
    tensor([0., 0.], grad_fn=<MulBackward0>)
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate.tanh()


@register("adapters.CrossAttention")
class CrossAttention(sl.Chain, Adapter[nn.Module]):
    """Adds to what goes into a layer (B, T, D) what it finds in a sequence (B, S, sequence_dim) from the context.

    `CrossAttention.on(lm, "blocks.*", num_heads=8, sequence_dim=512)` lets every block of a decoder attend. What is
    found passes a gate that is closed at the start, so that the model begins as it was; the gate has a gradient from
    the first step on, and all else from the second on. The sequence is given in the context:

    `with lm.context(cross_attention={"sequence": sequence, "padding_mask": mask}): lm.generate(...)`

    Args:
        target: The layer, a block of a decoder.
        num_heads: Of the attention.
        sequence_dim: Width of the sequence from outside; by default D.
        embedding_dim: D; by default that of the first normalisation or linear layer in the target.
        context: The scope of the sequence, and of the optional `padding_mask` (B, S), True where it is real.
        key: Its key in that scope.
        name: Of what is added.

    Raises:
        ValueError: `embedding_dim` is not given and cannot be seen, or the numbers do not divide.

    Source: Flamingo, section 2.2 (https://arxiv.org/abs/2204.14198), without the feed-forward layers there.

    Example:
        >>> model = sl.Stack(*(sl.Residual(sl.RMSNorm(8), sl.Linear(8, 8)) for _ in range(2)))
        >>> x, sequence = torch.ones(1, 3, 8), torch.ones(1, 5, 4)
        >>> bare = model(x)
        >>> with CrossAttention.on(model, "#", num_heads=2, sequence_dim=4):
        ...     torch.equal(model(x, sequence=sequence), bare)
        True
    """

    def __init__(
        self,
        target: nn.Module,
        num_heads: int = 1,
        sequence_dim: int | None = None,
        embedding_dim: int | None = None,
        context: str = "cross_attention",
        key: str = "sequence",
        name: str = "cross",
    ) -> None:
        dim = _width(target) if embedding_dim is None else embedding_dim
        attention = sl.CrossAttention(dim, num_heads, sequence_dim, context=context, key=key)
        with self.setup_adapter(target):
            super().__init__(
                {name: sl.Residual(norm=sl.RMSNorm(dim), attention=attention, gate=Gate()), "block": target}
            )
        self.adapter_name = name


def _width(layer: nn.Module) -> int:
    """The width of what goes into a layer, as the first layer in it that has one says."""
    for inner in layer.modules():
        if isinstance(inner, nn.LayerNorm | nn.RMSNorm):
            return inner.normalized_shape[-1]
        if isinstance(inner, nn.Linear):
            return inner.in_features
    raise ValueError(
        f"The width of what goes into this {type(layer).__name__} cannot be seen, as it has no nn.LayerNorm, "
        f"nn.RMSNorm or nn.Linear. Give it: CrossAttention.on(..., embedding_dim=...)."
    )
