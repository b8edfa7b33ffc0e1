from __future__ import annotations

import pytest
import torch

from suture import layers as sl


def test_branches_are_multiplied_in_order() -> None:
    x, keys = torch.randn(2, 6, 3), sl.Linear(3, 3)
    scores = sl.Matmul(sl.Identity(), sl.Chain(keys, sl.Transpose(-1, -2)))
    assert torch.equal(scores(x), x @ keys(x).transpose(-1, -2))


def test_of_three_branches_the_first_product_is_taken_first() -> None:
    x, y, z = torch.randn(2, 3), torch.randn(3, 4), torch.randn(4, 5)
    product = sl.Matmul(sl.GetArg(0), sl.GetArg(1), sl.GetArg(2))(x, y, z)
    assert torch.equal(product, x @ y @ z)


def test_leading_dimensions_broadcast() -> None:
    x, y = torch.randn(5, 1, 2, 3), torch.randn(4, 3, 2)
    assert sl.Matmul(sl.GetArg(0), sl.GetArg(1))(x, y).shape == (5, 4, 2, 2)


def test_a_branch_of_several_results_is_refused() -> None:
    with pytest.raises(TypeError, match="Matmul at 'scores' combines one result of each branch"):
        sl.Chain(scores=sl.Matmul(sl.Identity(), sl.Identity()))(torch.zeros(1), torch.zeros(1))


def test_without_branches_there_is_nothing_to_multiply() -> None:
    with pytest.raises(TypeError, match="Matmul at '' has no children"):
        sl.Matmul()(torch.zeros(1))


def test_shapes_that_do_not_fit_are_torchs_error_with_the_place() -> None:
    with pytest.raises(RuntimeError) as caught:
        sl.Chain(scores=sl.Matmul(sl.Identity(), sl.Identity()))(torch.zeros(2, 3))
    assert "scores" in "".join(caught.value.__notes__)
