"""The key and value cache of a language model as inputs and outputs of its graph, for any family, by one function.

A backbone of Suture keeps its cache in layers. Here the same backbone is rewired into a graph without any state: what
it remembers comes in as tensors and goes out as tensors, so that it can be exported, sharded or plotted whole. The
causal language model drives it as it drives any backbone, and generates the same tokens.

Shapes: B rows, T new tokens, S tokens that the cache has room for, H heads, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from suture import CausalLM, Graph, Input, replay, trace
from suture import layers as sl
from suture.models import Gemma2Config, GPT2Config, gemma2, gpt2


def with_functional_cache(backbone: Any) -> Any:
    """The backbone as a graph that takes its cache and gives the next one."""
    graph = trace(backbone)
    token_ids, padding_mask = graph.inputs["token_ids"], graph.inputs["padding_mask"]
    index = Input("cache_update_index", shape=(), dtype=torch.long)
    earlier = Input("real", shape=(None, "room"), dtype=torch.bool)

    real = sl.Lambda(note_real)(token_ids, padding_mask, earlier, index)
    positions = sl.Lambda(count_real)(token_ids, real, index)
    caches: list[tuple[Input, Input]] = []
    next_caches: list[tuple[Any, Any]] = []

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, sl.KVCache):  # where keys and values of earlier calls are put in front of the new ones
            query, *new = args
            heads, width = new[0].example.shape[1], new[0].example.shape[3]
            key, value = (Input(name, shape=(None, heads, "room", width)) for name in ("key", "value"))
            caches.append((key, value))
            next_caches.append((sl.Lambda(write)(key, new[0], index), sl.Lambda(write)(value, new[1], index)))
            return query, *next_caches[-1]
        if isinstance(layer, sl.ScaledDotProductAttention):
            mask = sl.Lambda(may_attend)(token_ids, real, index, layer.window)
            return layer(*args, **{**kwargs, "mask": mask})
        return layer(*args, **kwargs)

    hidden = replay(graph, {"token_ids": token_ids, "positions": positions}, call)
    cached = Graph(
        inputs={
            "token_ids": token_ids,
            "padding_mask": padding_mask,
            "cache": {"real": earlier, "layers": tuple(caches)},
            "cache_update_index": index,
        },
        outputs=(hidden, {"real": real, "layers": tuple(next_caches)}),
        source=backbone,
    )

    def empty(batch: int, length: int) -> dict[str, Any]:
        def room(heads: int, width: int) -> Tensor:
            return torch.zeros(batch, heads, length, width)

        sizes = [(kept[0].example.shape[1], kept[0].example.shape[3]) for kept in caches]
        layers = tuple((room(*size), room(*size)) for size in sizes)
        return {"real": torch.zeros(batch, length, dtype=torch.bool), "layers": layers}

    return cached.with_cache(empty, update_index="cache_update_index")


# Each of these is one step of the graph, so it may look at sizes and values.


def note_real(token_ids: Tensor, padding_mask: Tensor | None, earlier: Tensor, index: Tensor) -> Tensor:
    """Which of all tokens are real, and no padding: (B, S)."""
    new = torch.ones_like(token_ids, dtype=torch.bool) if padding_mask is None else padding_mask
    return earlier.index_copy(1, places_of(token_ids, index), new)


def count_real(token_ids: Tensor, real: Tensor, index: Tensor) -> Tensor:
    """The positions of the new tokens, which count real ones only: (B, T)."""
    return (real.cumsum(-1) - 1).clamp(min=0).index_select(1, places_of(token_ids, index))


def may_attend(token_ids: Tensor, real: Tensor, index: Tensor, window: int | None) -> Tensor:
    """Which tokens each new one may attend to: (B, 1, T, S)."""
    own, every = places_of(token_ids, index)[:, None], torch.arange(real.shape[1])
    allowed = (every <= own) & real[:, None]
    if window is not None:
        count = real.cumsum(-1)
        allowed &= count[:, own] - count[:, None] < window
    return (allowed | (every == own))[:, None]


def write(kept: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """The cache (B, H, S, D) with new keys or values (B, H, T, D) at their places."""
    return kept.index_copy(2, torch.arange(new.shape[2]) + index, new)


def places_of(token_ids: Tensor, index: Tensor) -> Tensor:
    """Where the new tokens stand among all: (T,)."""
    return torch.arange(token_ids.shape[1]) + index


def models() -> dict[str, CausalLM]:
    """A small GPT-2 and a small Gemma 2, whose weights are large enough that what they say varies."""
    sizes: dict[str, Any] = {"vocabulary_size": 40, "embedding_dim": 16, "feedforward_dim": 32, "num_blocks": 4}
    sizes |= {"num_heads": 2, "max_positions": 64, "norm_epsilon": 1e-5, "tied": False}
    found = {
        "GPT-2": gpt2.build(
            GPT2Config(**sizes, activation="gelu_new", scaled_by_width=True, scaled_by_block=False),
        ),
        "Gemma 2": gemma2.build(
            Gemma2Config(
                **sizes,
                num_key_value_heads=1,
                head_dim=8,
                attention_bias=False,
                rotary_base=10000.0,
                rotary_scaling=None,
                attention_divisor=8.0,
                attention_cap=50.0,
                logits_cap=30.0,
                window=4,
                windowed=(True, False, True, False),
            )
        ),
    }
    for backbone, _ in found.values():
        for parameter in backbone.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.8)
    return {name: CausalLM(backbone, head).eval() for name, (backbone, head) in found.items()}


@torch.no_grad()
def main() -> None:
    """Generates with both kinds of cache, for two families, from two prompts of which one is padded."""
    torch.manual_seed(0)
    prompts = torch.tensor([[0, 0, 7, 3, 11], [5, 2, 9, 4, 6]])
    padding_mask = torch.tensor([[False, False, True, True, True], [True] * 5])
    for name, lm in models().items():
        functional = CausalLM(with_functional_cache(lm.backbone), lm.head)
        expected = lm.generate(prompts, padding_mask=padding_mask, max_new_tokens=12, stop_ids=[])
        received = functional.generate(prompts, padding_mask=padding_mask, max_new_tokens=12, stop_ids=[])
        print(f"{name}: {received[1].tolist()}, {'the same' if torch.equal(expected, received) else 'NOT the same'}")


if __name__ == "__main__":
    main()
