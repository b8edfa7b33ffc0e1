"""The graph of every family beside its tree, and so beside transformers: the same bits, whatever inputs are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import CausalLM, rewire, trace
from suture.models import TransformerBlock
from tests.parity.families import EXAMPLES, PLAIN, VOCABULARY, left_padded

ROWS = [[5, 9, 31], [7, 40, 12, 8, 99], [3, 17, 250, 61, 20, 33, 300, 44]]

every_family = pytest.mark.parametrize("name", PLAIN)


@pytest.fixture(scope="module")
def lm_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CausalLM]:
    root = tmp_path_factory.mktemp("graphs")
    return lambda name: CausalLM.from_pretrained(EXAMPLES[name].save(root / name.replace(" ", "-")))


def given_inputs() -> dict[str, dict[str, Any]]:
    """What a call may be given beside ids (3, 8), one of each kind."""
    _, real = left_padded(ROWS)
    allowed = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(2)) > 0.4
    return {
        "nothing": {},
        "padding": {"padding_mask": real},
        "mask": {"attention_mask": allowed | torch.eye(8, dtype=torch.bool)},
        "positions": {"positions": torch.arange(8).expand(3, -1) * 2 + 1},
        "padding and mask": {"padding_mask": real, "attention_mask": allowed[:, None].expand(3, 4, 8, 8)},
    }


@every_family
def test_a_graph_computes_what_its_tree_does_for_every_input(lm_of: Callable[[str], CausalLM], name: str) -> None:
    lm = lm_of(name)
    graph = trace(lm.backbone)
    ids, _ = left_padded(ROWS)
    with torch.no_grad():
        for kind, given in given_inputs().items():
            assert torch.equal(graph(ids, **given), lm.backbone(ids, **given)), kind
        embeddings = torch.randn(3, 8, 32, generator=torch.Generator().manual_seed(3))
        assert torch.equal(graph(None, embeddings=embeddings), lm.backbone(None, embeddings=embeddings))
    assert list(graph.state_dict()) == [key for key in lm.backbone.state_dict() if key in graph.state_dict()]
    assert set(graph.state_dict()) == set(lm.backbone.state_dict())


@every_family
def test_a_graph_advances_the_cache_as_its_tree_does(lm_of: Callable[[str], CausalLM], name: str) -> None:
    lm = lm_of(name)
    graph = trace(lm.backbone)
    ids, real = left_padded(ROWS)
    caches: list[Any] = [lm.init_cache(3, 16) for _ in range(2)]
    with torch.no_grad():
        for start, stop in ((0, 3), (3, 7), (7, 8)):
            given: dict[str, Any] = {"padding_mask": real[:, start:stop]}
            mine = graph(ids[:, start:stop], cache=caches[0], **given)
            assert torch.equal(mine, lm.backbone(ids[:, start:stop], cache=caches[1], **given))
    assert caches[0].length == caches[1].length == 8


@every_family
def test_gradients_of_a_graph_are_those_of_its_tree(lm_of: Callable[[str], CausalLM], name: str) -> None:
    lm = lm_of(name)
    ids, real = left_padded(ROWS)

    def gradients(model: nn.Module) -> dict[str, Tensor]:
        lm.backbone.zero_grad()
        model(ids, padding_mask=real)[real].pow(2).mean().backward()
        return {key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None}

    mine, theirs = gradients(trace(lm.backbone)), gradients(lm.backbone)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(gradient, theirs[key]) for key, gradient in mine.items())


@every_family
def test_a_rewired_backbone_generates_with_its_cache_what_it_does_without(
    lm_of: Callable[[str], CausalLM], name: str
) -> None:
    lm = lm_of(name)
    first, second, third = lm.backbone.layers(TransformerBlock)

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if layer is first:
            return layer(layer(*args, **kwargs), **kwargs)  # twice, with two places in the cache
        if layer is second:
            return args[0]  # not at all
        y = layer(*args, **kwargs)
        return 0.9 * y if layer is third else y

    rewired = CausalLM(rewire(lm.backbone, call), lm.head).eval()
    assert not torch.allclose(rewired(torch.tensor(ROWS[2:])), lm(torch.tensor(ROWS[2:])), atol=1e-2)
    together = rewired.generate(ROWS, max_new_tokens=8, stop_ids=[])
    for row, ids in zip(ROWS, together, strict=True):
        assert rewired.generate([row], max_new_tokens=8, stop_ids=[]) == [ids]
        for length in range(len(row), len(ids)):
            with torch.no_grad():
                top = rewired(torch.tensor([ids[:length]]))[0, -1].topk(2)
            assert top.indices[0] == ids[length] or top.values[0] - top.values[1] < 1e-4
    assert all(0 <= token < VOCABULARY for ids in together for token in ids)
