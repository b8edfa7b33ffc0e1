from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

from suture import layers as sl
from suture.layers.cache import Cache
from suture.layers.rotary import RotaryScaling, RotaryTables

HEAD_DIM = 16
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SCALINGS = [
    pytest.param({"rope_type": "default"}, None, id="default"),
    pytest.param({"rope_type": "linear", "factor": 4.0}, sl.LinearScaling(4.0), id="linear"),
    pytest.param({"rope_type": "llama3", **LLAMA3}, sl.Llama3Scaling(8.0, 1.0, 4.0, 64), id="llama3"),
]


def transformers_tables(rope: dict[str, Any], base: float, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    config = LlamaConfig(hidden_size=4 * HEAD_DIM, num_attention_heads=4, rope_parameters={"rope_theta": base, **rope})
    return modeling_llama.LlamaRotaryEmbedding(config)(x, positions)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize(("rope", "scaling"), SCALINGS)
def test_tables_are_bit_equal_to_transformers(rope: dict[str, Any], scaling: RotaryScaling | None, base: float) -> None:
    positions = torch.tensor([[0, 1, 2, 3000], [0, 0, 1, 2]])
    cosines, sines = transformers_tables(rope, base, positions, torch.zeros(1))
    ours = RotaryTables(positions, HEAD_DIM, base, scaling).of(torch.float32)
    assert torch.equal(ours[0][:, 0], cosines)
    assert torch.equal(ours[1][:, 0].abs(), sines.abs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rope", "scaling"), SCALINGS)
def test_turning_equals_transformers(rope: dict[str, Any], scaling: RotaryScaling | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 5, HEAD_DIM, dtype=dtype), torch.randn(2, 2, 5, HEAD_DIM, dtype=dtype)
    positions = torch.arange(5).expand(2, 5) + 7
    cosines, sines = transformers_tables(rope, 10_000.0, positions, query)
    turn = cast("Callable[..., tuple[Tensor, Tensor]]", modeling_llama.apply_rotary_pos_emb)
    rotary = sl.Chain(sl.Rotary(HEAD_DIM, scaling=scaling))
    turned = rotary(query, key, context={"inputs": {"positions": positions}})
    for ours, theirs in zip(turned, turn(query, key, cosines, sines), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 if dtype == torch.float32 else 3e-2)


def test_what_follows_query_and_key_is_handed_on() -> None:
    query, value, other = (torch.randn(1, 2, 3, 8) for _ in range(3))
    result = sl.Rotary(8)(query, query, value, other)
    assert result[2] is value
    assert result[3] is other


def test_without_positions_tokens_are_numbered_from_zero() -> None:
    query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8)
    rotary = sl.Chain(sl.Rotary(8))
    expected = rotary(query, key, positions=torch.arange(3).expand(1, 3))
    assert all(map(torch.equal, rotary(query, key), expected))


def test_without_positions_tokens_are_numbered_on_from_the_cache() -> None:
    query = torch.randn(1, 2, 1, 8)
    cache = Cache(batch=1, length=8)
    cache.start((1, 5))
    cache.finish()
    rotary = sl.Chain(sl.Rotary(8))
    expected = rotary(query, query, positions=torch.tensor([[5]]))
    assert all(map(torch.equal, rotary(query, query, cache=cache), expected))


def test_a_single_sequence_has_no_batch() -> None:
    query = torch.randn(1, 2, 3, 8)
    alone = sl.Chain(sl.Rotary(8))(query[0], query[0], positions=torch.arange(3))
    batched = sl.Chain(sl.Rotary(8))(query, query, positions=torch.arange(3).expand(1, 3))
    assert torch.equal(alone[0], batched[0][0])


def test_products_depend_on_the_distance_only() -> None:
    query, key = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8, dtype=torch.float64)
    rotary = sl.Chain(sl.Rotary(8))

    def score(query_position: int, key_position: int) -> float:
        turned, _ = rotary(query, query, positions=torch.tensor([[query_position]]))
        _, other = rotary(key, key, positions=torch.tensor([[key_position]]))
        return float((turned * other).sum())

    assert score(5, 2) == pytest.approx(score(905, 902), abs=1e-4)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-4)


def test_equal_layers_share_their_tables_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []
    original = RotaryTables.__init__

    def counted(self: RotaryTables, positions: Tensor, head_dim: int, base: float, scaling: Any) -> None:
        made.append(base)
        original(self, positions, head_dim, base, scaling)

    monkeypatch.setattr(RotaryTables, "__init__", counted)
    llama3 = sl.Llama3Scaling(8.0, 1.0, 4.0, 64)
    layers = [sl.Rotary(8), sl.Rotary(8), sl.Rotary(8, base=500.0, scaling=llama3)]
    layers.append(sl.Rotary(8, base=500.0, scaling=sl.Llama3Scaling(8.0, 1.0, 4.0, 64)))
    query = torch.randn(1, 2, 3, 8)
    sl.Chain(*layers)(query, query, positions=torch.arange(3).expand(1, 3))
    assert made == [10_000.0, 500.0]


def test_an_odd_head_is_refused() -> None:
    with pytest.raises(ValueError, match="must be even; received 7"):
        sl.Rotary(7)


def test_heads_that_are_not_split_are_refused() -> None:
    with pytest.raises(ValueError, match=r"received a query of shape \(1, 3, 32\)"):
        sl.Rotary(8)(torch.zeros(1, 3, 32), torch.zeros(1, 3, 32))
