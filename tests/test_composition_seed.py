"""Models written and adapted as in the composition text: every listing of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import Adapter
from suture import layers as sl


class SelfAttention(sl.Chain):
    def __init__(self, embedding_dim: int) -> None:
        super().__init__(
            sl.Parallel(
                sl.Linear(embedding_dim, embedding_dim),
                sl.Linear(embedding_dim, embedding_dim),
                sl.Linear(embedding_dim, embedding_dim),
            ),
            sl.ScaledDotProductAttention(),
            sl.Linear(embedding_dim, embedding_dim),
        )


class TwoArguments(sl.Chain):
    def __init__(self, embedding_dim: int, cross_embedding_dim: int) -> None:
        def projection(index: int) -> sl.Chain:
            width = cross_embedding_dim if index else embedding_dim
            return sl.Chain(sl.GetArg(index), sl.Linear(width, embedding_dim))

        super().__init__(
            sl.Parallel(projection(0), sl.Sum(projection(0), projection(1)), sl.Sum(projection(0), projection(1))),
            sl.ScaledDotProductAttention(),
            sl.Linear(embedding_dim, embedding_dim),
        )


class WithContext(sl.Chain):
    def __init__(self, embedding_dim: int, cross_embedding_dim: int) -> None:
        def with_side() -> sl.Sum:
            return sl.Sum(
                sl.Linear(embedding_dim, embedding_dim),
                sl.Chain(
                    sl.UseContext(context="self_attention", key="cross_x"),
                    sl.Linear(cross_embedding_dim, embedding_dim),
                ),
            )

        super().__init__(
            sl.Parallel(sl.Linear(embedding_dim, embedding_dim), with_side(), with_side()),
            sl.ScaledDotProductAttention(),
            sl.Linear(embedding_dim, embedding_dim),
        )


class DerivedAdapter(sl.Chain, Adapter[SelfAttention]):
    """Written with the way in only."""

    def __init__(self, target: SelfAttention, cross_embedding_dim: int) -> None:
        self.embedding_dim = target.ensure_find(sl.Linear).in_features
        self.cross_embedding_dim = cross_embedding_dim
        with self.setup_adapter(target):
            super().__init__(target)

    def inject(self, parent: sl.Composite | None = None) -> DerivedAdapter:
        parallel = self.target.ensure_find(sl.Parallel)
        query, key, value = parallel
        self.target.replace(parallel, sl.Parallel(query, self.with_side(key), self.with_side(value)))
        return super().inject(parent)

    def with_side(self, projection: nn.Module) -> sl.Sum:
        return sl.Sum(
            projection,
            sl.Chain(
                sl.UseContext("self_attention", "cross_x"), sl.Linear(self.cross_embedding_dim, self.embedding_dim)
            ),
        )


class HandWrittenAdapter(DerivedAdapter):
    """Puts things back itself, as the text does."""

    def eject(self) -> None:
        parallel = self.target.ensure_find(sl.Parallel)
        query, key, value = (layer for layer in parallel)
        assert isinstance(key, sl.Sum)
        assert isinstance(value, sl.Sum)
        old = sl.Parallel(query, key.ensure_find(sl.Linear), value.ensure_find(sl.Linear))
        self.target.replace(parallel, old)
        super().eject()


def by_hand(attention: sl.Chain, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    query, output = attention.layers(sl.Linear)[0](x), attention.layers(sl.Linear)[-1]
    scores = torch.softmax(query @ keys.transpose(-1, -2) / keys.shape[-1] ** 0.5, dim=-1)
    return output(scores @ values)


@pytest.mark.parametrize("shape", [(1, 16), (5, 16), (2, 5, 16), (3, 2, 5, 16)])
def test_attention_takes_any_leading_dimensions(shape: tuple[int, ...]) -> None:
    attention, x = SelfAttention(16), torch.randn(shape)
    _, key, value, _ = attention.layers(sl.Linear)
    torch.testing.assert_close(attention(x), by_hand(attention, x, key(x), value(x)))


@pytest.mark.parametrize("leading", [(), (2,)])
def test_cross_attention_with_two_arguments(leading: tuple[int, ...]) -> None:
    attention = TwoArguments(16, 8)
    x, cross_x = torch.randn(*leading, 3, 16), torch.randn(*leading, 3, 8)
    _, key, cross_key, value, cross_value, _ = attention.layers(sl.Linear)
    expected = by_hand(attention, x, key(x) + cross_key(cross_x), value(x) + cross_value(cross_x))
    torch.testing.assert_close(attention(x, cross_x), expected)


def test_cross_attention_with_a_context_at_any_depth() -> None:
    model = sl.Chain(
        WithContext(1280, 512), WithContext(1280, 512), sl.MultiLinear(1280, 1280, inner_dim=5120, num_layers=3)
    )
    x, cross_x = torch.randn(1, 1280), torch.randn(1, 512)
    model.set_context("self_attention", {"cross_x": cross_x})
    result = model(x)
    assert result.shape == (1, 1280)
    assert torch.equal(result, model(x, cross_x=cross_x))
    assert not torch.equal(result, model(x, cross_x=-cross_x))


def snapshot(model: Any) -> list[Any]:
    return [
        [(place.path, id(place.layer), id(place.parent)) for place in model.places()],
        [(name, id(tensor)) for name, tensor in model.named_parameters()],
        [(name, id(module)) for name, module in model.named_modules()],
        repr(model),
    ]


@pytest.mark.parametrize("kind", [DerivedAdapter, HandWrittenAdapter])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_cross_attention_added_from_outside_and_taken_out_again(
    kind: type[DerivedAdapter], order: tuple[int, int]
) -> None:
    model = sl.Chain(SelfAttention(64), SelfAttention(64), sl.MultiLinear(64, 64, inner_dim=32, num_layers=3))
    x, cross_x = torch.rand(1, 1, 64), torch.rand(1, 1, 16)
    bare, before, keys = model(x), snapshot(model), list(model.state_dict())

    adapters = [kind(attention, cross_embedding_dim=16).inject() for attention in model.layers(SelfAttention)]

    model.set_context("self_attention", {"cross_x": cross_x})
    assert not torch.equal(model(x), bare)
    assert len(adapters) == 2
    assert set(keys) < set(model.state_dict())

    for number in order:
        adapters[number].eject()
    assert snapshot(model) == before
    assert torch.equal(model(x), bare)
