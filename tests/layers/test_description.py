from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any, cast

import pytest
import torch
from torch import nn

from suture import layers as sl
from suture.layers.building import DescriptionError, build
from suture.layers.description import Described, Unknown, describe


def plain(content: Any) -> Any:
    """A description as JSON has it, where nothing in it refers to a tree."""
    if isinstance(content, Described):
        return plain(content.content)
    if isinstance(content, dict):
        return {key: plain(value) for key, value in cast("dict[str, Any]", content).items()}
    return [plain(each) for each in cast("list[Any]", content)] if isinstance(content, list) else content


def nothing(*_: Any) -> Any:
    raise AssertionError


def again(layer: nn.Module) -> nn.Module:
    return build(plain(describe(layer)), nothing, nothing)


@pytest.mark.parametrize(
    "layer",
    [
        sl.Linear(3, 4, bias=False),
        sl.Linear(3, out_features=4, dtype=torch.bfloat16),
        sl.Conv2d(2, 4, (3, 1), padding="same"),
        sl.LayerNorm([3, 4], eps=float("1e-4")),
        sl.Reshape(2, -1),
        sl.Permute(1, 0),
        sl.Slicing(dim=-1, start=1),
        sl.UseContext("side", "x", default=None),
        sl.SetContext("side", "x"),
        sl.SelfAttention(8, num_heads=2, causal=True),
        sl.GatedFeedForward(4, 8),
        sl.Rotary(4, base=500.0, scaling=sl.LinearScaling(2.0)),
        sl.Concatenate(sl.Identity(), dim=0),
        sl.Stack(sl.ReLU(), sl.Linear(2, 2)),
        sl.Chain(a=sl.Sum(sl.Identity(), b=sl.Tanh()), c=sl.Chain()),
        sl.Chain(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_is_made_again_from_its_description(layer: nn.Module) -> None:
    made = again(layer)
    assert type(made) is type(layer)
    assert repr(made) == repr(layer)
    assert [(key, value.shape, value.dtype) for key, value in made.state_dict().items()] == [
        (key, value.shape, value.dtype) for key, value in layer.state_dict().items()
    ]


def test_a_copy_has_the_description_of_the_original() -> None:
    layer = sl.Chain(attention=sl.SelfAttention(8, num_heads=2), drop=sl.Dropout(0.25))
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert plain(describe(copied)) == plain(describe(layer))


def test_a_class_keeps_its_signature_and_its_subclasses_have_no_description() -> None:
    class Mine(sl.Linear):
        pass

    assert list(inspect.signature(sl.Linear).parameters)[:3] == ["in_features", "out_features", "bias"]
    assert isinstance(describe(Mine(2, 2)).content["class"], Unknown)


def test_every_public_layer_is_registered() -> None:
    names: list[str] = [*sl.__all__]
    layers = [
        kind for kind in (getattr(sl, name) for name in names) if inspect.isclass(kind) and issubclass(kind, nn.Module)
    ]
    assert len(layers) > 50
    assert all(hasattr(kind.__init__, "__wrapped__") for kind in layers)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"class": "eval", "arguments": {}}, "No class is registered as 'eval'"),
        ({"class": "Linear", "arguments": {"size": 3}}, "Linear is not made with size"),
        ({"dtype": "save"}, "no dtype 'save'"),
        ({"unknown": 1}, "describes no layer"),
    ],
)
def test_what_describes_nothing_is_refused(content: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        build(content, nothing, nothing)
