"""Generation is a black box: whatever was done to the tree, cached equals uncached and a padded row the row alone."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.generation import CausalLM
from suture.models import Backbone, LlamaConfig
from suture.models.llama import build
from tests.generation.fakes import continued

ROWS = [[3, 1, 4], [1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]]
NEW = 12


def tiny_llama(max_positions: int = 128) -> CausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(50, 32, 64, 4, 4, 2, 8, max_positions, 1e-5, 1e4, None, False, False, tied=False)
    backbone, head = build(config)
    for parameter in (*backbone.parameters(), *head.parameters()):
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.3)
    return CausalLM(backbone, head).eval()


def blocks_of(lm: CausalLM) -> sl.Stack:
    return lm.layer("backbone.blocks", sl.Stack)


class Add(nn.Module):
    """Adds a vector to every hidden state."""

    def __init__(self, vector: Tensor) -> None:
        super().__init__()
        self.vector = nn.Parameter(vector)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.vector


class AddFrom(Add):
    """Adds a vector from an absolute position on."""

    def __init__(self, vector: Tensor, start: int) -> None:
        super().__init__(vector)
        self.start = start
        self.reads = {"positions": sl.Read("inputs", "positions")}

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return hidden + self.vector * (positions >= self.start)[..., None]


def vector() -> Tensor:
    return torch.randn(32, generator=torch.Generator().manual_seed(1)) * 3


def nothing(lm: CausalLM) -> None:
    pass


def insert_vector(lm: CausalLM) -> None:
    blocks_of(lm).insert(2, Add(vector()))


def insert_vector_from_position_4(lm: CausalLM) -> None:
    blocks_of(lm).insert(2, AddFrom(vector(), 4))


def repeat_block(lm: CausalLM) -> None:
    blocks_of(lm).insert(2, lm.layer("backbone.blocks.1", sl.Composite).structural_copy())


def copy_block(lm: CausalLM) -> None:
    blocks_of(lm).insert(3, copy.deepcopy(blocks_of(lm)[1]))


def drop_first(lm: CausalLM) -> None:
    blocks_of(lm).pop(0)


def drop_middle(lm: CausalLM) -> None:
    blocks_of(lm).pop(2)


def drop_last(lm: CausalLM) -> None:
    blocks_of(lm).pop(-1)


def wrap_backbone(lm: CausalLM) -> None:
    lm.insert_after(lm.backbone, Add(vector()))


def scale_logits(lm: CausalLM) -> None:
    lm.append(sl.Chain(nn.Tanh(), Roll()))


class Roll(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return logits.roll(1, -1)


EDITS = [
    nothing,
    insert_vector,
    insert_vector_from_position_4,
    repeat_block,
    copy_block,
    drop_first,
    drop_middle,
    drop_last,
    wrap_backbone,
    scale_logits,
]


@pytest.mark.parametrize("edit", EDITS)
def test_cached_and_padded_equal_the_plainest_loop(edit: Callable[[CausalLM], None]) -> None:
    lm = tiny_llama()
    bare = lm.generate(ROWS, max_new_tokens=NEW)
    edit(lm)
    result = lm.generate(ROWS, max_new_tokens=NEW)
    assert result == [continued(lm, row, NEW) for row in ROWS]
    assert (result == bare) is (edit is nothing)


@pytest.mark.parametrize("edit", EDITS)
def test_logits_of_padded_rows_equal_those_of_the_rows_alone(edit: Callable[[CausalLM], None]) -> None:
    lm = tiny_llama()
    edit(lm)
    width = max(map(len, ROWS))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in ROWS])
    real = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in ROWS])
    with torch.no_grad():
        padded: Tensor = lm(ids, padding_mask=real)
        cache = lm.init_cache(len(ROWS), width + 1)
        first: Tensor = lm(ids, padding_mask=real, cache=cache)
        second: Tensor = lm(torch.full((len(ROWS), 1), 7), cache=cache)
        for row, logits, cached, next_logits in zip(ROWS, padded, first, second, strict=True):
            alone: Tensor = lm(torch.tensor([[*row, 7]]))[0]
            torch.testing.assert_close(logits[-len(row) :], alone[:-1], atol=1e-5, rtol=0)
            torch.testing.assert_close(cached[-len(row) :], alone[:-1], atol=1e-5, rtol=0)
            torch.testing.assert_close(next_logits, alone[-1:], atol=1e-5, rtol=0)


def test_an_undone_edit_leaves_no_trace() -> None:
    lm = tiny_llama()
    bare = lm.generate(ROWS, max_new_tokens=NEW)
    edit = blocks_of(lm).insert(2, Add(vector()))
    lm.generate(ROWS, max_new_tokens=NEW)
    edit.undo()
    assert lm.generate(ROWS, max_new_tokens=NEW) == bare


def test_a_row_may_use_all_positions_whatever_the_padding_of_the_batch() -> None:
    lm = tiny_llama(max_positions=16)
    rows = [[3, 1], [5] * 15]
    result = lm.generate(rows)
    assert [len(row) for row in result] == [16, 16]
    assert result == [lm.generate(row) for row in rows]


def test_more_than_the_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="The prompt has 17 tokens, but the model has 16 positions"):
        tiny_llama(max_positions=16).generate([5] * 17)


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(autocast: bool) -> None:
    lm = tiny_llama() if autocast else tiny_llama().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        assert [len(row) for row in lm.generate(ROWS, max_new_tokens=4)] == [7, 9, 12]
        assert lm.generate(ROWS[2], max_new_tokens=1) == continued(lm, ROWS[2], 1)


def test_a_backbone_that_has_a_place_is_shared() -> None:
    lm = tiny_llama()
    second = CausalLM(lm.backbone, lm.head)
    assert second.backbone is not lm.backbone
    assert isinstance(second.backbone, Backbone)
    assert second.head is lm.head
    blocks_of(second).pop(0)
    assert len(blocks_of(lm)) == 4
    assert second.generate(ROWS, max_new_tokens=4) != lm.generate(ROWS, max_new_tokens=4)
    weights = {id(parameter) for parameter in lm.parameters()}
    assert all(id(parameter) in weights for parameter in second.parameters())


def test_copies_generate_the_same() -> None:
    lm = tiny_llama()
    assert copy.deepcopy(lm).generate(ROWS, max_new_tokens=4) == lm.generate(ROWS, max_new_tokens=4)
    assert lm.structural_copy().generate(ROWS, max_new_tokens=4) == lm.generate(ROWS, max_new_tokens=4)


def test_the_model_computes_the_last_logits_only_when_told_so() -> None:
    lm = tiny_llama()
    ids = torch.tensor([ROWS[2]])
    logits: Tensor = lm(ids)
    assert logits.shape == (1, 8, 50)
    torch.testing.assert_close(lm(ids, last_positions=2), logits[:, -2:])


def test_the_tree_has_a_backbone_and_a_head() -> None:
    lm = tiny_llama()
    assert [name for name, _ in lm.named_children()] == ["backbone", "last", "head"]
    assert {key.split(".")[0] for key in lm.state_dict()} == {"backbone", "head"}
