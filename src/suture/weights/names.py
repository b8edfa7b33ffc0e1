"""The two-way table between the names of a checkpoint and the keys of a tree.

A rule pairs a layer of the checkpoint with a layer of the tree, or with several that the checkpoint keeps as one (a
*fused* layer: their tensors, one after another along the first dimension). `#` stands for a number, the same on both
sides, and the names of the parameters in the layer (`weight`, `bias`) are the same on both sides too. What differs in
the order of the numbers is said once, by a *layout*: a function that views the tree's tensor (of a fused layer, all of
them joined) with its elements in the checkpoint's order. Loading copies the file into that view; saving copies the
view into the file. A transposed weight is `Tensor.t`; a row permutation is a reshape and a transpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
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
        layers: The layer in the tree, such as `backbone.blocks.#.feedforward.gated.branches.up`, or those that the
            checkpoint has fused, in its order.
        layout: Views a tensor of the tree, of fused layers their tensors joined, in the checkpoint's element order. The
            view may have more dimensions than the tensor, where an order can only be said so; its leading ones together
            are then the first dimension.
        added: What the checkpoint's values are greater by.

    >>> rule = Rule("attn.qkv", ("query", "key", "value"), torch.t)
    >>> weight = torch.zeros(2, 4)
    >>> rule.shape([weight, weight, weight])
    (4, 6)
    """

    stored: str
    layers: str | tuple[str, ...]
    layout: Layout = as_is
    added: float = 0.0

    @property
    def targets(self) -> tuple[str, ...]:
        """The layers in the tree, one or several."""
        return (self.layers,) if isinstance(self.layers, str) else self.layers

    def shape(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """The shape that a checkpoint stores `tensors` (of the tree, one for each target) with."""
        whole = _joined([tensor.to("meta") for tensor in tensors])
        view = self.layout(whole)
        extra = view.dim() - whole.dim()
        return tuple(view.flatten(0, extra).shape if extra else view.shape)

    def stored_values(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The values of `tensors` (of the tree, one for each target) as a checkpoint stores them."""
        values = self.layout(_joined(tensors)).reshape(self.shape(tensors))
        return values + self.added if self.added else values


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


@dataclass(frozen=True)
class NameTable:
    """Rules from names of a checkpoint to keys of a tree and back.

    Attributes:
        rules: One for each kind of layer that has parameters.
        ignored: Stored names (`#` for a number) that hold nothing the tree does not compute itself.

    Example:
        >>> table = NameTable((Rule("layers.#.qkv", ("blocks.#.query", "blocks.#.key")), Rule("lm_head", "head")))
        >>> table.to_tree("layers.3.qkv.weight")[0], table.to_stored("head.weight")[0]
        (('blocks.3.query.weight', 'blocks.3.key.weight'), 'lm_head.weight')
        >>> table.to_tree("layers.3.other.weight") is None
        True
    """

    rules: tuple[Rule, ...]
    ignored: tuple[str, ...] = ()

    def to_tree(self, name: str) -> tuple[tuple[str, ...], Rule] | None:
        """The keys in the tree of a stored name, with the rule that says so; None where no rule fits."""
        return _translated(name, ((rule.stored, rule.targets, rule) for rule in self.rules))

    def to_stored(self, key: str) -> tuple[str, Rule] | None:
        """The stored name of a key in the tree, with the rule that says so; None where no rule fits.

        Where several rules fit, the first one says how it is stored, and the others how it may be.
        """
        translated = _translated(key, ((layer, (rule.stored,), rule) for rule in self.rules for layer in rule.targets))
        return None if translated is None else (translated[0][0], translated[1])

    def is_ignored(self, name: str) -> bool:
        """Whether a stored name is known to hold nothing that the tree needs."""
        return any(_pattern(ignored).fullmatch(name) for ignored in self.ignored)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(r"(\d+)".join(re.escape(part) for part in name.split("#")))


def _translated(name: str, rules: Iterable[tuple[str, tuple[str, ...], Rule]]) -> tuple[tuple[str, ...], Rule] | None:
    layer, _, parameter = name.rpartition(".")
    for source, targets, rule in rules:
        if match := _pattern(source).fullmatch(layer):
            return tuple(f"{_numbered(target, match.groups())}.{parameter}" for target in targets), rule
    return None


def _numbered(pattern: str, numbers: tuple[str, ...]) -> str:
    left = iter(numbers)
    return re.sub("#", lambda _: next(left), pattern)
