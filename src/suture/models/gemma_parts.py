"""The layers that the Gemma models share: their norm, their embedding, their branches and their head.

Shapes: any leading dimensions (...), T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suture import layers as sl
from suture.layers.description import register
from suture.models.backbone import TokenEmbedding
from suture.models.block_names import BLOCK
from suture.models.gemma_settings import GemmaSizes
from suture.weights.names import Rule


@register("models.ZeroCentredRMSNorm")
class ZeroCentredRMSNorm(sl.RMSNorm):
    """Unit root mean square over the last dimension, times one plus the weight: (..., D) to the same.

    A weight of zero leaves the values as they are. All of it is computed in float32 and rounded once.

    Source: https://arxiv.org/abs/1910.07467; the plus one, https://arxiv.org/abs/2403.08295.

    >>> ZeroCentredRMSNorm(2)(torch.tensor([1.0, 7.0])).detach()
    tensor([0.2000, 1.4000])
    """

    def __init__(self, embedding_dim: int, eps: float = 1e-6) -> None:
        super().__init__(embedding_dim, eps=eps)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), tuple(self.normalized_shape), 1.0 + self.weight.float(), self.eps).type_as(x)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape[0]}, eps={self.eps:g}"


@register("models.ScaledTokenEmbedding")
class ScaledTokenEmbedding(TokenEmbedding):
    """The embeddings of token ids times the root of their width: whole numbers (..., T) to (..., T, D).

    The factor is rounded to the dtype of the weight first, as in the models' training. Embeddings given in the context,
    `embeddings` of the scope `"inputs"`, are returned as they are: they are what this layer would return.

    Raises:
        IndexError: As `TokenEmbedding`.

    Source: https://arxiv.org/abs/1706.03762, section 3.4.

    >>> layer = ScaledTokenEmbedding(10, 4)
    >>> torch.equal(layer(torch.tensor([3])), layer.weight[[3]] * 2)
    True
    """

    def forward(self, input: Tensor | None, embeddings: Tensor | None = None) -> Tensor:  # noqa: A002 (torch's name)
        embedded = super().forward(input, embeddings)
        if embeddings is not None:
            return embedded
        return embedded * torch.tensor(self.embedding_dim**0.5).to(embedded.dtype)


def gated_feedforward(embedding_dim: int, feedforward_dim: int) -> sl.GatedFeedForward:
    """`down(gelu(gate(x)) * up(x))`, with the tanh form of GELU: (..., D) to the same."""
    return sl.GatedFeedForward(embedding_dim, feedforward_dim, activation=sl.GELU(approximate="tanh"))


def self_attention(
    sizes: GemmaSizes,
    rotary: sl.Rotary,
    attend: sl.ScaledDotProductAttention | None = None,
    norms: sl.Distribute | None = None,
) -> sl.SelfAttention:
    """Causal attention of the sizes, with what differs between the models: (B, T, D) to the same."""
    return sl.SelfAttention(
        sizes.embedding_dim,
        num_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        head_dim=sizes.head_dim,
        bias=sizes.attention_bias,
        causal=True,
        rotary=rotary,
        norms=norms,
        attend=attend,
    )


def tied_head(embedding: TokenEmbedding, tied: bool) -> sl.Linear:
    """The linear layer from hidden states to logits, whose weight is the embedding's where they are tied."""
    linear = sl.Linear(embedding.embedding_dim, embedding.num_embeddings, bias=False)
    if tied:
        linear.weight = embedding.weight
    return linear


def capped_head(embedding: TokenEmbedding, tied: bool, cap: float | None) -> nn.Module:
    """As `tied_head`; with a cap, a chain of that linear layer, `projection`, and the soft cap of logits, `cap`."""
    linear = tied_head(embedding, tied)
    return linear if cap is None else sl.Chain(projection=linear, cap=sl.SoftCap(cap))


def head_path(cap: float | None) -> str:
    """Where the linear layer of `capped_head` is."""
    return "head" if cap is None else "head.projection"


TRANSFORMERS_NORMS = (
    Rule("model.layers.#.input_layernorm", f"{BLOCK}.attention.norm"),
    Rule("model.layers.#.post_attention_layernorm", f"{BLOCK}.attention.post_norm"),
    Rule("model.layers.#.pre_feedforward_layernorm", f"{BLOCK}.feedforward.norm"),
    Rule("model.layers.#.post_feedforward_layernorm", f"{BLOCK}.feedforward.post_norm"),
)
"""The norms of a block that has one on both sides of its branches."""

GGUF_NORMS = (
    Rule("blk.#.attn_norm", f"{BLOCK}.attention.norm", added=1.0),
    Rule("blk.#.post_attention_norm", f"{BLOCK}.attention.post_norm", added=1.0),
    Rule("blk.#.ffn_norm", f"{BLOCK}.feedforward.norm", added=1.0),
    Rule("blk.#.post_ffw_norm", f"{BLOCK}.feedforward.post_norm", added=1.0),
    Rule("output_norm", "backbone.norm", added=1.0),
)
"""The same in a GGUF file, which stores what the values are multiplied with."""


def windowed(blocks: Sequence[nn.Module]) -> tuple[bool, ...]:
    """Of which blocks the attention has a window."""
    found = (block.find(sl.ScaledDotProductAttention) for block in blocks if isinstance(block, sl.Composite))
    return tuple(attend is not None and attend.window is not None for attend in found)
