"""Whether an edited tree is still of its family, layer by layer.

A tree that lost or repeated blocks is: its blocks are counted as they are wired, whatever they are called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from suture import layers as sl
from suture.models.block import TransformerBlock

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

    >>> blocks = sl.Stack(*(TransformerBlock(sl.ReLU(), sl.Identity()) for _ in range(2)))
    >>> edit = blocks.pop(0)
    >>> [(standing.key, standing.path) for standing in standings(sl.Chain(blocks=blocks), sl.Linear(2, 2))][2:4]
    [('backbone.blocks.0', 'backbone.blocks.1'), ('backbone.blocks.0.attention', 'backbone.blocks.1.attention')]
    """
    yield Standing("backbone", "backbone", backbone)
    blocks, block, number = None, "", -1
    for place in backbone.places() if isinstance(backbone, sl.Composite) else ():
        path = key = place.path
        if path == BLOCKS:
            blocks = place.layer
        elif place.parent is blocks and isinstance(place.layer, TransformerBlock):
            block, number = path, number + 1
        if block and f"{path}.".startswith(f"{block}."):
            key = f"{BLOCKS}.{number}{path[len(block) :]}"
        yield Standing(f"backbone.{key}", f"backbone.{path}", place.layer)
    yield Standing("head", "head", head)
    for place in head.places() if isinstance(head, sl.Composite) else ():
        yield Standing(f"head.{place.path}", f"head.{place.path}", place.layer)


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
    differences: dict[str, str] = {}
    for standing in found:
        like = expected.get(standing.key)
        if like is None:
            differences[standing.key] = f"{standing.path} ({type(standing.layer).__name__}) does not belong to it"
        elif _signature(standing.layer) != _signature(like):
            differences[standing.key] = f"{standing.path} is {_label(standing.layer)} where it has {_label(like)}"
    present = {standing.key for standing in found}
    differences |= {key: f"{key} is missing" for key in expected if key not in present}
    if not differences and [standing.key for standing in found] != list(expected):
        return ["its layers are wired in another order or more than once"]
    # What differs inside something that differs goes without saying.
    return [said for key, said in differences.items() if not any(part in differences for part in _around(key))]


def _around(key: str) -> list[str]:
    names = key.split(".")
    return [".".join(names[:length]) for length in range(1, len(names))]


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
