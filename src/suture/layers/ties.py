"""Tensors that several layers share stay shared where torch makes new ones, on the way to another device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager

from torch import nn


@contextmanager
def keeping_ties(model: nn.Module) -> Generator[None]:
    """For a block: what is one parameter or buffer of several layers before it is one after it.

    >>> from suture import layers as sl
    >>> model = sl.Chain(sl.Embedding(3, 2), head=sl.Linear(2, 3))
    >>> model.head.weight = model[0].weight
    >>> model.to("meta").head.weight is model[0].weight
    True
    """
    holders: defaultdict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        own = [*module.named_parameters(recurse=False, remove_duplicate=False)]
        own_buffers = [*module.named_buffers(recurse=False, remove_duplicate=False)]
        for name, tensor in [*own, *own_buffers]:
            holders[id(tensor)].append((module, name))
    yield
    for (first, name), *others in holders.values():
        tensor = getattr(first, name)
        for other, other_name in others:
            if getattr(other, other_name) is not tensor:
                setattr(other, other_name, tensor)
