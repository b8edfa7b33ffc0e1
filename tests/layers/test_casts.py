from __future__ import annotations

import pytest
import torch

from suture import layers as sl

DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.long, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_argument_takes_the_dtype(dtype: torch.dtype) -> None:
    x, ids = torch.tensor([0.0, 1.0]), torch.tensor([1, 0])
    result: tuple[torch.Tensor, ...] = sl.ToDtype(dtype)(x, ids)
    for given, converted in zip((x, ids), result, strict=True):
        assert torch.equal(converted, given.to(dtype))
        assert converted.dtype == dtype


def test_one_argument_gives_one_result_and_is_left_alone_where_it_fits() -> None:
    x = torch.zeros(2)
    assert sl.ToDtype(torch.float32)(x) is x
    assert sl.ToDevice("cpu")(x) is x
    assert sl.ToDevice("meta")(x).is_meta


def test_gradients_come_back_in_the_dtype_that_went_in() -> None:
    x = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    sl.ToDtype(torch.float32)(x).square().sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2,), 2.0, dtype=torch.bfloat16))


@pytest.mark.parametrize("layer", [sl.ToDtype(torch.float16), sl.ToDevice("cpu")], ids=repr)
def test_what_is_no_tensor_is_refused(layer: sl.ToDtype | sl.ToDevice) -> None:
    with pytest.raises(TypeError, match=r"takes tensors. Received as argument 2 of 2: 'x' \(str\)"):
        layer(torch.zeros(1), "x")


def test_neither_the_place_nor_the_model_changes_what_a_cast_casts_to() -> None:
    model = sl.Chain(sl.Linear(4, 4)).to(torch.bfloat16)
    cast, linear = sl.ToDtype(torch.float32), sl.Linear(4, 4)
    model.append(cast)
    model.append(linear)
    assert linear.weight.dtype == torch.bfloat16
    linear.float()
    assert model(torch.zeros(1, 4, dtype=torch.bfloat16)).dtype == torch.float32
    model.to(torch.float64)
    assert cast(torch.zeros(1, dtype=torch.float64)).dtype == torch.float32


def test_they_print_what_they_convert_to() -> None:
    assert [repr(sl.ToDtype(torch.float16)), repr(sl.ToDevice("cuda:1"))] == ["ToDtype(float16)", "ToDevice(cuda:1)"]
