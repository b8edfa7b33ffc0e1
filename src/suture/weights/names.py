"""The two-way table between the names of a checkpoint and the keys of a tree.

A rule pairs a layer of the checkpoint with a layer of the tree; `#` stands for a number, the same on both sides, and
the names of the parameters in the layer (`weight`, `bias`) are the same on both sides too. What differs in the numbers
is said once, by a *layout*: a function that views the tree's tensor with its elements in the checkpoint's order.
Loading copies the file into that view; saving copies the view into the file. A transposed weight is `Tensor.t`; a row
permutation is a reshape and a transpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import torch

Layout = Callable[[torch.Tensor], torch.Tensor]


def as_is(tensor: torch.Tensor) -> torch.Tensor:
    """The layout of a tensor that is stored as the tree has it."""
    return tensor


@dataclass(frozen=True)
class Rule:
    """One line of a name table.

    Attributes:
        stored: The layer in the checkpoint, such as `model.layers.#.mlp.up_proj`.
        layer: The layer in the tree, such as `backbone.blocks.#.feedforward.gated.branches.up`.
        layout: Views a tensor of the tree in the checkpoint's element order. The view may have more dimensions than
            the tensor, where an order can only be said so; its leading ones together are then the first dimension.
    """

    stored: str
    layer: str
    layout: Layout = as_is

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """The shape that a checkpoint stores `tensor` (of the tree) with."""
        view = self.layout(tensor.to("meta"))
        extra = view.dim() - tensor.dim()
        return tuple(view.flatten(0, extra).shape if extra else view.shape)

    def stored_values(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of `tensor` (of the tree) as a checkpoint stores them."""
        return self.layout(tensor).reshape(self.shape(tensor))


@dataclass(frozen=True)
class NameTable:
    """Rules from names of a checkpoint to keys of a tree and back.

    Attributes:
        rules: One for each kind of layer that has parameters.
        ignored: Stored names (`#` for a number) that hold nothing the tree does not compute itself.

    Example:
        >>> table = NameTable((Rule("model.layers.#.mlp.up_proj", "blocks.#.up"), Rule("lm_head", "head")))
        >>> table.to_tree("model.layers.3.mlp.up_proj.weight")[0], table.to_stored("head.weight")[0]
        ('blocks.3.up.weight', 'lm_head.weight')
        >>> table.to_tree("model.layers.3.mlp.other.weight") is None
        True
    """

    rules: tuple[Rule, ...]
    ignored: tuple[str, ...] = ()

    def to_tree(self, name: str) -> tuple[str, Rule] | None:
        """The key in the tree of a stored name, with the rule that says so; None where no rule fits."""
        return _translated(name, ((rule.stored, rule.layer, rule) for rule in self.rules))

    def to_stored(self, key: str) -> tuple[str, Rule] | None:
        """The stored name of a key in the tree, with the rule that says so; None where no rule fits."""
        return _translated(key, ((rule.layer, rule.stored, rule) for rule in self.rules))

    def is_ignored(self, name: str) -> bool:
        """Whether a stored name is known to hold nothing that the tree needs."""
        return any(_pattern(ignored).fullmatch(name) for ignored in self.ignored)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(r"(\d+)".join(re.escape(part) for part in name.split("#")))


def _translated(name: str, rules: Iterable[tuple[str, str, Rule]]) -> tuple[str, Rule] | None:
    layer, _, parameter = name.rpartition(".")
    for source, target, rule in rules:
        if match := _pattern(source).fullmatch(layer):
            numbers = iter(match.groups())
            return re.sub("#", lambda _, numbers=numbers: next(numbers), target) + f".{parameter}", rule
    return None
