"""What a tree reads from the context, found once for each version of its structure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from suture.layers.context import Read, as_read, sources
from suture.layers.node import node_of

if TYPE_CHECKING:
    from suture.layers.composite import Composite


@dataclass
class Inputs:
    """What a tree reads from its context."""

    reads: tuple[Read, ...] = ()
    """What comes from outside: it is read before anything in the tree has written it."""
    all_reads: dict[str, Read] = field(default_factory=dict[str, Read])
    written: set[str] = field(default_factory=set[str])
    initial: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """What every call begins with."""

    def scopes_of(self, key: str) -> list[str]:
        return sorted({read.scope for read in self.all_reads.values() if read.key == key})


def inputs_of(root: Composite) -> Inputs:
    """The inputs of a tree, in the order in which its layers are called."""
    cached = root.node.cached
    if cached is None or cached[0] != root.node.version:
        found = Inputs()
        outside: dict[str, Read] = {}
        _collect(root, found, outside)
        found.reads = tuple(outside.values())
        root.node.cached = cached = (root.node.version, found)
    return cached[1]


def _collect(layer: nn.Module, found: Inputs, outside: dict[str, Read]) -> None:
    declared: dict[str, Any] = dict(getattr(layer, "reads", {}))
    for read in (source for each in declared.values() for source in sources(as_read(each))):
        for known, counts in ((found.all_reads, True), (outside, read.identity not in found.written)):
            if counts and (read.identity not in known or read.required):
                known[read.identity] = read
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
    found.written |= {f"{scope}.{key}" for scope, key in composite.writes}


def known_reads(module: nn.Module) -> Iterator[Read]:
    """What any tree inside `module` reads, those inside plain modules too."""
    for inner in module.modules():
        node = node_of(inner)
        composite = node.module() if node is not None else None
        if composite is not None:
            yield from inputs_of(composite).all_reads.values()
