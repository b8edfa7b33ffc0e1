from __future__ import annotations

import pytest
import torch
from torch import Tensor

from suture import layers as sl


def test_heads_are_split_and_merged() -> None:
    query, key = torch.randn(2, 5, 32), torch.randn(2, 5, 16)
    split = sl.SplitHeads(head_dim=8)(query, key)
    assert [each.shape for each in split] == [(2, 4, 5, 8), (2, 2, 5, 8)]
    assert torch.equal(split[0][:, 1], query[..., 8:16])
    assert torch.equal(sl.MergeHeads()(split[0]), query)


def test_one_argument_is_split_alone_and_may_have_no_leading_dimension() -> None:
    split = sl.SplitHeads(head_dim=8)(torch.randn(5, 32))
    assert isinstance(split, Tensor)
    assert split.shape == (4, 5, 8)
    assert sl.MergeHeads()(split).shape == (5, 32)


def test_a_width_that_is_no_multiple_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of 8; received a tensor of shape \(2, 5, 30\)"):
        sl.SplitHeads(head_dim=8)(torch.zeros(2, 5, 30))
