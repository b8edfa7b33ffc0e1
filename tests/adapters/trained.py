"""What the tests of LoRA share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from suture import layers as sl
from suture.adapters import LoRA


def train(adapters: Iterable[LoRA]) -> None:
    """Gives LoRAs weights as training would: a fresh one adds nothing and hides faults."""
    with torch.no_grad():
        for adapter in adapters:
            for parameter in adapter.branch.parameters():
                parameter.copy_(torch.randn_like(parameter, dtype=torch.float32) * 0.5)


def facts(model: nn.Module) -> list[Any]:
    """The structure, the tensors by identity and the printed form of a model."""
    places = [(place.path, id(place.layer)) for place in model.places()] if isinstance(model, sl.Composite) else []
    return [
        places,
        list(map(id, model.modules())),
        [(name, id(each)) for name, each in model.state_dict(keep_vars=True).items()],
        repr(model),
    ]
