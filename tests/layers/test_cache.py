from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.layers.cache import Cache
from suture.layers.slots import StateSlot


def heads(tokens: int, batch: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, 2, tokens, 4, dtype=dtype)


def run(cache: Cache, layers: list[sl.KVCache], key: Tensor, version: int = 0) -> list[Tensor]:
    """A call in which each layer caches `key`; what each of them sees in the end."""
    cache.start((key.shape[0], key.shape[2]), structure_version=version)
    seen = [layer(key, key, -key, cache=cache) for layer in layers]
    cache.finish()
    for _, keys, values in seen:
        assert torch.equal(values, -keys)
    return [keys for _, keys, _ in seen]


Mode = torch.inference_mode | torch.no_grad | torch.enable_grad
MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param()


def test_without_a_cache_nothing_changes() -> None:
    query, key, value = heads(1), heads(3), heads(3)
    result = sl.Chain(sl.KVCache())(query, key, value)
    assert [each is given for each, given in zip(result, (query, key, value), strict=True)] == [True] * 3


def test_keys_and_values_are_those_of_all_calls(mode: Mode) -> None:
    cache, layer = Cache(batch=2, length=8), sl.KVCache()
    pieces = [heads(tokens, batch=2) for tokens in (3, 1, 2)]
    with mode:
        for number, piece in enumerate(pieces):
            (keys,) = run(cache, [layer], piece)
            assert torch.equal(keys, torch.cat(pieces[: number + 1], dim=2))
    assert (cache.length, cache.capacity, cache.batch) == (6, 8, 2)


def test_each_call_site_has_its_own_slot(mode: Mode) -> None:
    cache, layer = Cache(batch=1, length=8), sl.KVCache()
    first, second = heads(2), heads(2)
    with mode:
        for times in (1, 2):
            cache.start((1, 2))
            _, keys, _ = layer(first, first, first, cache=cache)
            _, others, _ = layer(second, second, second, cache=cache)
            cache.finish()
            assert torch.equal(keys, torch.cat([first] * times, 2))
            assert torch.equal(others, torch.cat([second] * times, 2))


def test_room_is_made_once_and_written_in_place() -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache()]
    with torch.no_grad():
        (first,) = run(cache, layers, heads(3))
        (second,) = run(cache, layers, heads(1))
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_room_has_the_dtype_of_what_arrives() -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache()]
    with torch.no_grad():
        (keys,) = run(cache, layers, heads(3, dtype=torch.bfloat16))
        assert keys.dtype == torch.bfloat16


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_a_cache_goes_from_one_mode_to_another(first: type[Mode], second: type[Mode]) -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache()]
    pieces = [heads(2), heads(2), heads(2)]
    for number, mode in enumerate((first, second, first)):
        with mode():
            (keys,) = run(cache, layers, pieces[number])
            assert torch.equal(keys, torch.cat(pieces[: number + 1], 2))


def test_gradients_flow_through_a_cache() -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache()]
    first, second = heads(2).requires_grad_(), heads(1).requires_grad_()
    run(cache, layers, first)
    (keys,) = run(cache, layers, second)
    with torch.no_grad():
        run(cache, layers, heads(1))
    keys.square().sum().backward()
    assert first.grad is not None
    assert torch.equal(first.grad, 2 * first)


def test_a_call_that_raises_leaves_the_cache_as_it_was(mode: Mode) -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache(), sl.KVCache()]
    first, second = heads(2), heads(1)
    with mode:
        run(cache, layers, first)
        cache.start((1, 3), structure_version=0)
        layers[0](heads(3), heads(3), heads(3), cache=cache)
        assert cache.length == 2
        for keys in run(cache, layers, second):
            assert torch.equal(keys, torch.cat((first, second), 2))


def test_what_a_failed_call_with_gradients_staged_is_dropped() -> None:
    cache, layer = Cache(batch=1, length=8), sl.KVCache()
    first, second, third = heads(2), heads(1), heads(1)
    run(cache, [layer], first)
    cache.start((1, 1), structure_version=0)
    layer(heads(1), heads(1), heads(1), cache=cache)
    with torch.no_grad():
        run(cache, [layer], second)
        (keys,) = run(cache, [layer], third)
        assert torch.equal(keys, torch.cat((first, second, third), 2))


def test_a_failed_first_call_does_not_bind_the_cache() -> None:
    cache = Cache(batch=1, length=8)
    cache.start((1, 3), structure_version=0)
    sl.KVCache()(heads(3), heads(3), heads(3), cache=cache)
    run(cache, [sl.KVCache()], heads(2), version=1)
    assert cache.length == 2


def test_more_tokens_than_there_is_room_for() -> None:
    cache, layers = Cache(batch=1, length=4), [sl.KVCache()]
    run(cache, layers, heads(3))
    with pytest.raises(ValueError, match="room for 4 tokens and holds 3: 2 more do not fit"):
        run(cache, layers, heads(2))
    run(cache, layers, heads(1))


def test_a_cache_of_no_rows_or_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="received batch=0, length=4"):
        Cache(batch=0, length=4)


def test_another_batch_is_refused() -> None:
    cache, layer = Cache(batch=2, length=4), sl.KVCache()
    with pytest.raises(ValueError, match=r"takes tokens of shape \(2, T\); received \(1, 3\)"):
        cache.start((1, 3))
    cache.start((2, 1))
    with pytest.raises(ValueError, match=r"A cache of 2 rows .* received \(3, 2, 1, 4\)"):
        layer(heads(1, batch=3), heads(1, batch=3), heads(1, batch=3), cache=cache)


def test_heads_that_are_not_split_are_refused() -> None:
    cache, x = Cache(batch=1, length=4), torch.zeros(1, 1, 8)
    cache.start((1, 1))
    with pytest.raises(ValueError, match=r"\(1, heads, tokens, head_dim\); received \(1, 1, 8\)"):
        sl.KVCache()(x, x, x, cache=cache)


def test_keys_of_another_length_than_the_tokens_are_refused() -> None:
    cache = Cache(batch=1, length=8)
    cache.start((1, 1))
    with pytest.raises(ValueError, match=r"received keys of shape \(1, 2, 3, 4\) in a call of 1 new tokens"):
        sl.KVCache()(heads(1), heads(3), heads(3), cache=cache)


def test_another_dtype_is_refused() -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache()]
    run(cache, layers, heads(2))
    with pytest.raises(ValueError, match=r"holds keys in torch\.float32 on cpu; received torch\.bfloat16"):
        run(cache, layers, heads(1, dtype=torch.bfloat16))


def test_a_cache_that_no_call_started_is_refused() -> None:
    with pytest.raises(ValueError, match="no call has started"):
        sl.KVCache()(heads(1), heads(1), heads(1), cache=Cache(batch=1, length=8))


def test_an_edited_model_is_refused() -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache()]
    run(cache, layers, heads(2))
    with pytest.raises(ValueError, match="edited since this cache was filled with 2 tokens"):
        run(cache, layers, heads(1), version=1)
    cache.rewind(0)
    run(cache, [sl.KVCache()], heads(1), version=1)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ([0], "only 1 stateful calls were made"),
        ([0, 1, 2], "KVCache makes stateful call 3"),
        ([1, 0], "stateful call 1 comes from another KVCache"),
    ],
)
def test_other_layers_than_before_are_refused(now: list[int], message: str) -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache(), sl.KVCache(), sl.KVCache()]
    run(cache, layers[:2], heads(2))
    with pytest.raises(ValueError, match=message):
        run(cache, [layers[number] for number in now], heads(1))
    assert cache.length == 2
    run(cache, layers[:2], heads(1))


def test_rewinding_forgets_the_last_tokens(mode: Mode) -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache()]
    first, second = heads(4), heads(2)
    with mode:
        run(cache, layers, first)
        cache.rewind(1)
        (keys,) = run(cache, layers, second)
        assert torch.equal(keys, torch.cat((first[:, :, :1], second), 2))


def test_rewinding_does_not_write_to_what_backward_needs() -> None:
    cache, layers = Cache(batch=1, length=8), [sl.KVCache()]
    key = heads(4).requires_grad_()
    (keys,) = run(cache, layers, key)
    squares = keys.square()
    cache.rewind(1)
    with torch.no_grad():
        run(cache, layers, heads(2))
    squares.sum().backward()
    assert key.grad is not None


def test_rewinding_forwards_is_refused() -> None:
    with pytest.raises(ValueError, match="holds 0 tokens: it cannot go back to 1"):
        Cache(batch=1, length=8).rewind(1)


def test_a_copy_and_its_original_do_not_see_each_other(mode: Mode) -> None:
    cache, layers = Cache(batch=1, length=4), [sl.KVCache()]
    prefix, pieces = heads(3), [heads(1), heads(4)]
    with mode:
        run(cache, layers, prefix)
        copied = cache.copy(length=7)
        (first,) = run(cache, layers, pieces[0])
        (second,) = run(copied, layers, pieces[1])
        assert torch.equal(first, torch.cat((prefix, pieces[0]), 2))
        assert torch.equal(second, torch.cat((prefix, pieces[1]), 2))
    assert (cache.length, copied.length) == (4, 7)


def test_a_copy_that_is_too_short_is_refused() -> None:
    cache = Cache(batch=1, length=4)
    run(cache, [sl.KVCache()], heads(3))
    with pytest.raises(ValueError, match="holds 3 tokens: a copy with room for 2 is too short"):
        cache.copy(length=2)


def test_rows_are_selected_and_repeated(mode: Mode) -> None:
    cache, layers = Cache(batch=2, length=8), [sl.KVCache()]
    first, second = heads(2, batch=2), heads(1, batch=3)
    with mode:
        run(cache, layers, first)
        cache.select_rows(torch.tensor([1, 1, 0]))
        (keys,) = run(cache, layers, second)
        assert torch.equal(keys, torch.cat((first[[1, 1, 0]], second), 2))
    assert cache.batch == 3


# What is known of the tokens


def test_positions_count_real_tokens_only() -> None:
    cache = Cache(batch=2, length=8)
    padding_mask = torch.tensor([[False, False, True], [True, True, True]])
    assert cache.start((2, 3), padding_mask=padding_mask).tolist() == [[0, 0, 0], [0, 1, 2]]
    cache.finish()
    assert cache.start((2, 2)).tolist() == [[1, 2], [3, 4]]
    assert cache.padding_mask is not None
    assert cache.padding_mask.int().tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]


def test_a_row_of_nothing_but_padding_starts_at_zero_later() -> None:
    cache = Cache(batch=1, length=8)
    cache.start((1, 2), padding_mask=torch.tensor([[False, False]]))
    cache.finish()
    assert cache.start((1, 2)).tolist() == [[0, 1]]


def test_padding_at_the_end_of_a_piece_counts_no_position() -> None:
    cache = Cache(batch=1, length=8)
    cache.start((1, 3), padding_mask=torch.tensor([[True, True, False]]))
    cache.finish()
    assert cache.start((1, 1)).tolist() == [[2]]


def test_given_positions_are_taken_and_continued() -> None:
    cache = Cache(batch=1, length=8)
    assert cache.start((1, 2), positions=torch.tensor([[10, 20]])).tolist() == [[10, 20]]
    cache.finish()
    assert cache.start((1, 2)).tolist() == [[21, 22]]
    cache.finish()
    assert cache.padding_mask is None


def test_what_is_known_of_tokens_is_rewound_and_selected() -> None:
    cache = Cache(batch=2, length=8)
    cache.start((2, 3), padding_mask=torch.tensor([[False, False, True], [True, True, True]]))
    cache.finish()
    cache.rewind(2)
    cache.select_rows(torch.tensor([1, 0]))
    assert cache.start((2, 1)).tolist() == [[2], [0]]


def test_a_failed_call_leaves_what_is_known_of_tokens() -> None:
    cache = Cache(batch=1, length=8)
    cache.start((1, 2), padding_mask=torch.tensor([[False, True]]))
    assert cache.start((1, 2)).tolist() == [[0, 1]]
    assert cache.padding_mask is None


# Layers of a user's own


class RunningSum(nn.Module):
    """The sum of all tokens so far: (B, T, D) to (B, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = {"cache": sl.Read("inputs", "cache", default=None)}

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        total = x.sum(1)
        if cache is not None:
            slot = cache.slot(self, StateSlot)
            total = total if slot.state is None else slot.state + total
            slot.stage(total)
        return total


def recur(cache: Cache, layer: nn.Module, x: Tensor) -> Tensor:
    cache.start((x.shape[0], x.shape[1]))
    result = layer(x, cache=cache)
    cache.finish()
    return result


def test_a_recurrent_layer_keeps_its_state() -> None:
    cache, layer, x = Cache(batch=2, length=8), RunningSum(), torch.randn(2, 5, 3)
    recur(cache, layer, x[:, :2])
    cache.start((2, 1))
    layer(x[:, 4:], cache=cache)  # and then something fails
    torch.testing.assert_close(recur(cache, layer, x[:, 2:]), x.sum(1))


def test_a_recurrent_layer_says_that_it_cannot_be_rewound() -> None:
    cache, layer, x = Cache(batch=2, length=8), RunningSum(), torch.randn(2, 5, 3)
    recur(cache, layer, x)
    with pytest.raises(ValueError, match="cannot go back from 5 to 4 tokens: RunningSum does not keep"):
        cache.rewind(4)
    cache.rewind(5)
    torch.testing.assert_close(recur(cache, layer, x[:, :1]), x.sum(1) + x[:, 0])
    cache.rewind(0)
    torch.testing.assert_close(recur(cache, layer, x), x.sum(1))


def test_a_refused_rewind_changes_no_layer() -> None:
    cache, recurrent, attention, key = Cache(batch=1, length=8), RunningSum(), sl.KVCache(), heads(3)

    def call(piece: Tensor) -> Tensor:
        cache.start((1, piece.shape[2]))
        _, keys, _ = attention(piece, piece, piece, cache=cache)
        recurrent(piece[:, 0], cache=cache)
        cache.finish()
        return keys

    call(key)
    with pytest.raises(ValueError, match="RunningSum"):
        cache.rewind(1)
    assert torch.equal(call(key), torch.cat((key, key), 2))


def test_a_recurrent_state_is_selected_and_copied() -> None:
    cache, layer, x = Cache(batch=2, length=16), RunningSum(), torch.randn(2, 5, 3)
    recur(cache, layer, x)
    copied = cache.copy()
    copied.select_rows(torch.tensor([1]))
    torch.testing.assert_close(recur(copied, layer, x[1:]), 2 * x[1:].sum(1))
    torch.testing.assert_close(recur(cache, layer, x), 2 * x.sum(1))
