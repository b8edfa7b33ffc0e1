"""Whether an edited tree is still of its family, layer by layer.

A tree that lost or repeated blocks is: its blocks are counted as they are wired, whatever they are called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from suture import layers as sl

BLOCKS = "blocks"


@dataclass(frozen=True)
class Standing:
    """A layer where it stands in a model.

    Attributes:
        key: Its path if the blocks were numbered as they are wired, from `backbone` or `head` on.
        path: Its path in the tree.
        layer: The layer.
    """

    key: str
    path: str
    layer: nn.Module


def standings(backbone: nn.Module, head: nn.Module) -> Iterator[Standing]:
    """Every layer that a call of the model reaches, in the order of calling.

    >>> [standing.key for standing in standings(sl.Chain(blocks=sl.Stack(sl.ReLU())), sl.Linear(2, 2))]
    ['backbone', 'backbone.blocks', 'backbone.blocks.0', 'head']
    """
    yield Standing("backbone", "backbone", backbone)
    blocks, block, number = None, "", -1
    for place in backbone.places() if isinstance(backbone, sl.Composite) else ():
        path = key = place.path
        if path == BLOCKS:
            blocks = place.layer
        elif place.parent is blocks:
            block, number = path, number + 1
        if block and f"{path}.".startswith(f"{block}."):
            key = f"{BLOCKS}.{number}{path[len(block) :]}"
        yield Standing(f"backbone.{key}", f"backbone.{path}", place.layer)
    yield Standing("head", "head", head)


def unlike(model: tuple[nn.Module, nn.Module], reference: tuple[nn.Module, nn.Module]) -> list[str]:
    """What makes a model (backbone and head) another one than `reference`, in words; empty where nothing does.

    >>> backbone, head = sl.Chain(up=sl.Linear(2, 4), down=sl.Linear(4, 2)), sl.Linear(2, 3)
    >>> reference = (sl.Chain(up=sl.Linear(2, 4), down=sl.Linear(4, 2)), sl.Linear(2, 3))
    >>> unlike((backbone, head), reference)
    []
    >>> edit = backbone.insert(1, sl.ReLU())
    >>> unlike((backbone, head), reference)
    ['backbone.ReLU (ReLU) does not belong to it']
    """
    expected = {standing.key: standing.layer for standing in standings(*reference)}
    found = list(standings(*model))
    strange = {standing.key for standing in found if standing.key not in expected}
    differences: list[str] = []
    for standing in found:
        if standing.key not in expected:
            if standing.key.rpartition(".")[0] not in strange:
                differences.append(f"{standing.path} ({type(standing.layer).__name__}) does not belong to it")
        elif _signature(standing.layer) != _signature(expected[standing.key]):
            differences.append(
                f"{standing.path} is {_label(standing.layer)} where it has {_label(expected[standing.key])}"
            )
    present = {standing.key for standing in found}
    differences += [f"{key} is missing" for key in expected if key not in present]
    if not differences and [standing.key for standing in found] != list(expected):
        differences.append("its layers are wired in another order or more than once")
    return differences


def _signature(layer: nn.Module) -> tuple[object, ...]:
    """What a layer computes, as far as can be seen: its forward, its settings, and the shapes of its tensors."""
    # Not its class: a subclass that computes the same is as good, and some trainers replace the class.
    shapes = {} if isinstance(layer, sl.Composite) else {name: t.shape for name, t in layer.state_dict().items()}
    return type(layer).forward, layer.extra_repr(), shapes


def _label(layer: nn.Module) -> str:
    settings = layer.extra_repr()
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in layer.state_dict().items())
    inside = ", ".join(part for part in (settings, shapes) if part)
    return type(layer).__name__ if isinstance(layer, sl.Composite) else f"{type(layer).__name__}({inside})"
