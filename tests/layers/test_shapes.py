from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl

X = torch.arange(24).view(2, 3, 4)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (sl.Reshape(12), X.reshape(2, 12)),
        (sl.Reshape(4, 3), X.reshape(2, 4, 3)),
        (sl.Reshape(2, -1, 2), X.reshape(2, 2, 3, 2)),
        (sl.Flatten(), X.reshape(2, 12)),
        (sl.Flatten(0), X.reshape(24)),
        (sl.Unflatten(2, (2, 2)), X.reshape(2, 3, 2, 2)),
        (sl.Transpose(0, -1), X.transpose(0, 2)),
        (sl.Permute(2, 0, 1), X.permute(2, 0, 1)),
        (sl.Permute(-1, 0, 1), X.permute(2, 0, 1)),
        (sl.Unsqueeze(0), X[None]),
        (sl.Unsqueeze(-1), X[..., None]),
        (sl.Chain(sl.Unsqueeze(1), sl.Squeeze(1)), X),
        (sl.Chain(sl.Unsqueeze(-1), sl.Squeeze(-1)), X),
        (sl.Slicing(1, 1), X[:, 1:]),
        (sl.Slicing(-1, 1, 3), X[..., 1:3]),
        (sl.Slicing(-2, end=-1), X[:, :-1]),
        (sl.Slicing(2, step=3), X[:, :, ::3]),
        (sl.Slicing(0, 1, 9), X[1:9]),
        (sl.Slicing(0, 5), X[5:]),
    ],
    ids=repr,
)
def test_each_gives_what_torch_gives(layer: nn.Module, expected: Tensor) -> None:
    assert torch.equal(layer(X), expected)


def test_they_compile_and_export_with_a_dynamic_batch() -> None:
    tree = sl.Chain(
        sl.Reshape(4, -1), sl.Transpose(1, 2), sl.Permute(0, 2, 1), sl.Unsqueeze(1), sl.Squeeze(1), sl.Slicing(1, 1, 3)
    )
    tree.append(sl.Chain(sl.Unflatten(-1, (3, 1)), sl.Flatten(), sl.ToDtype(torch.float64)))
    x = X.float()
    assert torch.equal(torch.compile(tree, fullgraph=True, backend="eager")(x), tree(x))
    exported = torch.export.export(tree, (x,), dynamic_shapes={"args": ({0: torch.export.Dim("batch")},)})
    assert torch.equal(exported.module()(torch.cat((x, x))), tree(torch.cat((x, x))))


def test_a_batch_of_none_keeps_its_shape() -> None:
    assert sl.Reshape(2, -1)(torch.zeros(0, 6)).shape == (0, 2, 3)


def test_a_view_is_one() -> None:
    for layer in (sl.Reshape(12), sl.Transpose(0, 1), sl.Permute(0, 2, 1), sl.Unsqueeze(0), sl.Slicing(1, 0, 2)):
        assert layer(X).untyped_storage().data_ptr() == X.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (sl.Reshape(5), r"Reshape\(5,\) shapes the elements of each row, 5 .*shape \(2, 3, 4\): rows of 12"),
        (sl.Reshape(5, -1), r"5 or a multiple of them. Received a tensor of shape \(2, 3, 4\): rows of 12"),
        (
            sl.Squeeze(1),
            r"dimension of size 1; received a tensor of shape \(2, 3, 4\).*Slicing\(1, start, ",
        ),
        (sl.Permute(1, 0), r"orders 2 dimensions, the batch among them. Received a tensor of shape \(2, 3, 4\)"),
    ],
    ids=repr,
)
def test_a_shape_that_does_not_fit_is_refused(layer: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(X)


def test_what_has_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(\): it has no rows"):
        sl.Reshape(1)(torch.tensor(1.0))


@pytest.mark.parametrize(
    "layer", [sl.Transpose(0, 3), sl.Transpose(-4, 0), sl.Squeeze(3), sl.Slicing(-4), sl.Slicing(3, 1)], ids=repr
)
def test_a_dimension_that_is_not_there_is_refused(layer: nn.Module) -> None:
    with pytest.raises(IndexError, match=r"needs dimension -?\d; received a tensor of shape \(2, 3, 4\).* are 0 to 2"):
        layer(X)


def test_what_can_never_work_is_refused_at_construction() -> None:
    for shape in ((0,), (-2, 3), (-1, -1)):
        with pytest.raises(ValueError, match="sizes of at least 1, one of them perhaps -1"):
            sl.Reshape(*shape)
    for dims in ((0, 0), (0, -2)):
        with pytest.raises(ValueError, match="names each dimension once"):
            sl.Permute(*dims)
    for step in (0, -1):
        with pytest.raises(ValueError, match=f"a step of at least 1; received step={step}"):
            sl.Slicing(0, step=step)


def test_torchs_own_are_subclassed() -> None:
    assert issubclass(sl.Flatten, nn.Flatten)
    assert issubclass(sl.Unflatten, nn.Unflatten)


def test_they_print_how_they_were_made() -> None:
    layers = [sl.Reshape(2, -1), sl.Transpose(1, 2), sl.Permute(0, 2, 1), sl.Squeeze(1), sl.Unsqueeze(-1)]
    layers += [sl.Slicing(1), sl.Slicing(-1, 2, 5, 2)]
    printed = ["Reshape(2, -1)", "Transpose(1, 2)", "Permute(0, 2, 1)", "Squeeze(1)", "Unsqueeze(-1)"]
    printed += ["Slicing(dim=1, 0:)", "Slicing(dim=-1, 2:5:2)"]
    assert [repr(layer) for layer in layers] == printed
