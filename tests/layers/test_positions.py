from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.models.backbone import Backbone, TokenEmbedding

VOCABULARY, WIDTH = 30, 16
LAYERS = {
    "learned": lambda: sl.LearnedPositions(max_length=20, embedding_dim=WIDTH),
    "sinusoidal": lambda: sl.SinusoidalPositions(WIDTH),
}
Layer = sl.LearnedPositions | sl.SinusoidalPositions


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> Layer:
    return LAYERS[request.param]()


def decoder(layer: Layer) -> Backbone:
    attention = sl.SelfAttention(WIDTH, num_heads=2, causal=True)
    return Backbone(embedding=TokenEmbedding(VOCABULARY, WIDTH), positions=layer, attention=sl.Residual(attention))


def vectors(layer: Layer, positions: Tensor) -> Tensor:
    return sl.Chain(layer)(torch.zeros(*positions.shape, WIDTH), positions=positions)


def close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_tokens_are_numbered_from_zero_where_nobody_gives_positions(layer: Layer) -> None:
    x = torch.randn(2, 5, WIDTH)
    assert torch.equal(layer(x), x + vectors(layer, torch.arange(5)))
    assert torch.equal(layer(x[0]), layer(x)[0])


def test_positions_come_from_the_context(layer: Layer) -> None:
    x, positions = torch.randn(2, 3, WIDTH), torch.tensor([[0, 5, 1], [7, 7, 2]])
    result = sl.Chain(layer)(x, positions=positions)
    for row, at in enumerate(positions):
        assert torch.equal(result[row], x[row] + vectors(layer, at))


@pytest.mark.parametrize("sizes", [[1] * 5, [2, 3], [5]])
def test_pieces_after_padding_equal_each_row_alone(layer: Layer, sizes: list[int]) -> None:
    backbone = decoder(layer)
    tokens = torch.randint(VOCABULARY, (2, 11))
    mask = torch.arange(6) >= torch.tensor([[4], [0]])
    cache = backbone.init_cache(batch=2, length=11)
    ends = [6 + end for end in accumulate(sizes)]
    with torch.no_grad():
        first = backbone(tokens[:, :6], padding_mask=mask, cache=cache)
        rest = [backbone(tokens[:, end - size : end], cache=cache) for size, end in zip(sizes, ends, strict=True)]
        for row in range(2):
            alone = backbone(torch.cat((tokens[row, :6][mask[row]], tokens[row, 6:]))[None])[0]
            close(torch.cat((first[row, mask[row]], *(piece[row] for piece in rest))), alone)


def test_with_a_cache_alone_tokens_are_numbered_on(layer: Layer) -> None:
    cache = sl.Cache(batch=1, length=8)
    cache.start((1, 3))
    cache.finish()
    x = torch.zeros(1, 2, WIDTH)
    assert torch.equal(sl.Chain(layer)(x, cache=cache)[0], vectors(layer, torch.tensor([3, 4])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_result_has_the_dtype_of_the_tokens(layer: Layer, dtype: torch.dtype) -> None:
    assert layer.to(dtype)(torch.zeros(1, 3, WIDTH, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("shape", [(2, 3, WIDTH + 1), (2, 3, 1), (WIDTH,)])
def test_tokens_of_another_width_are_refused(layer: Layer, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes tokens as vectors, \(\.\.\., T, 16\); received a tensor of shape"):
        layer(torch.zeros(shape))


def test_learned_positions_are_trained() -> None:
    layer = sl.LearnedPositions(8, WIDTH)
    layer(torch.zeros(2, 3, WIDTH)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad[:, 0].tolist() == [2, 2, 2, 0, 0, 0, 0, 0]
    assert isinstance(layer, nn.Embedding)
    assert list(layer.state_dict()) == ["weight"]


def test_a_position_without_a_vector_is_refused() -> None:
    layer = sl.LearnedPositions(4, WIDTH)
    with pytest.raises(IndexError, match=r"positions 0 to 3; received position 4, for tokens of shape \(1, 6, 16\)"):
        layer(torch.zeros(1, 6, WIDTH))


def test_sines_and_cosines_are_those_of_the_paper() -> None:
    layer = sl.SinusoidalPositions(WIDTH, base=50.0)
    result = layer(torch.zeros(9, WIDTH))
    for position in range(9):
        for i in range(WIDTH // 2):
            angle = position / 50.0 ** (2 * i / WIDTH)
            expected = torch.tensor([math.sin(angle), math.cos(angle)])
            torch.testing.assert_close(result[position, 2 * i : 2 * i + 2], expected)


def test_far_positions_are_exact_in_half_precision_too() -> None:
    positions = torch.tensor([[70_000]])
    model = sl.Chain(sl.SinusoidalPositions(WIDTH))
    exact = model(torch.zeros(1, 1, WIDTH), positions=positions)
    half = model(torch.zeros(1, 1, WIDTH, dtype=torch.float16), positions=positions)
    assert torch.equal(half, exact.half())


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="embedding_dim must be even; received 7"):
        sl.SinusoidalPositions(7)


def test_they_print_how_they_were_made() -> None:
    printed = [repr(sl.LearnedPositions(8, 4)), repr(sl.SinusoidalPositions(4, base=50.0))]
    assert printed == ["LearnedPositions(8, 4)", "SinusoidalPositions(4, base=50)"]


def test_exported_with_a_dynamic_length(layer: Layer) -> None:
    backbone, length = decoder(layer), torch.export.Dim("length", min=2, max=20)
    tokens = torch.randint(VOCABULARY, (2, 9))
    exported = torch.export.export(backbone, (tokens[:, :6].clone(),), dynamic_shapes={"args": ({1: length},)})
    close(exported.module()(tokens), backbone(tokens))
