"""What a tree reads from the context, found once for each version of its structure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from suture.layers.context import Read, as_read, sources
from suture.layers.node import node_of
from suture.layers.symbolic import TakesContext


class Inputs:
    """What a tree reads from its context.

    `reads` come from outside: they are read before anything in the tree has written them. `initial` is what every call
    begins with. Compiled code goes through this too, so it is written in what can be traced.
    """

    def __init__(self) -> None:
        self.reads: tuple[Read, ...] = ()
        self.all_reads: dict[str, Read] = {}
        self.written: dict[str, tuple[str, str]] = {}
        self.initial: dict[str, dict[str, Any]] = {}

    def scopes_of(self, key: str) -> list[str]:
        return sorted({read.scope for read in self.all_reads.values() if read.key == key})


def inputs_of(root: nn.Module) -> Inputs:
    """The inputs of a tree, in the order in which its layers are called."""
    node = node_of(root)
    if node is None or torch.compiler.is_compiling():
        # Found while tracing and never again; a cache that comes and goes would be a reason to compile anew.
        return _find_inputs(root)
    cached = node.cached
    if cached is None or cached[0] != node.version:
        node.cached = cached = (node.version, _find_inputs(root))
    return cached[1]


def _find_inputs(root: nn.Module) -> Inputs:
    found = Inputs()
    outside: dict[str, Read] = {}
    _collect(root, found, outside)
    found.reads = tuple(outside.values())
    return found


def _collect(layer: nn.Module, found: Inputs, outside: dict[str, Read]) -> None:
    declared: dict[str, Any] = dict(getattr(layer, "reads", {}))
    for each in declared.values():
        for read in sources(as_read(each)):
            if read.identity not in found.all_reads or read.required:
                found.all_reads[read.identity] = read
            if read.identity not in found.written and (read.identity not in outside or read.required):
                outside[read.identity] = read
    node = node_of(layer)
    composite = node.module() if node is not None else None
    if node is None or composite is None:
        return
    for scope, entries in composite.init_context().items():
        # What is further out wins, as the outer tree knows more of what it is used for.
        found.initial[scope] = {**entries, **found.initial.get(scope, {})}
    for slot in node.filled():
        if slot.layer is not None:
            _collect(slot.layer, found, outside)
    for scope, key in composite.writes:
        found.written[f"{scope}.{key}"] = (scope, key)


def known_reads(module: nn.Module) -> Iterator[Read]:
    """What any tree inside `module` reads, those inside plain modules too."""
    for inner in module.modules():
        if node_of(inner) is not None or isinstance(inner, TakesContext):
            yield from inputs_of(inner).all_reads.values()
