"""Dropout where a researcher wants it: put in before training, taken out afterwards."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from suture import layers as sl
from suture.layers.description import register
from suture.surgery.adapter import Adapter
from suture.surgery.criteria import Criteria
from suture.surgery.group import AdapterGroup


@register("adapters.Dropout")
class Dropout(sl.Chain, Adapter[nn.Module]):
    """Zeroes elements of what a layer returns, (...) to the same, with probability `p` while training.

    A residual branch is the exception: there, what it adds to its input is dropped, and the input stays whole.

    `Dropout.on(model, "attention", "feedforward", p=0.1)` puts it in at every selected place and returns a group, whose
    `p` can be set and which takes all out again.

    Raises:
        ValueError: `p` is not between 0 and 1.

    Source: https://jmlr.org/papers/v15/srivastava14a.html.

    Example:
        >>> model = sl.Chain(attention=sl.Residual(sl.Linear(4, 4)), output=sl.Linear(4, 2))
        >>> group = Dropout.on(model, "attention", "output", p=0.1)
        >>> [type(layer).__name__ for layer in model.attention], [type(layer).__name__ for layer in model]
        (['Linear', 'Dropout'], ['Residual', 'Dropout'])
        >>> group.p = 0.2
        >>> group.eject()
        >>> [type(layer).__name__ for layer in model]
        ['Residual', 'Linear']
    """

    def __init__(self, target: nn.Module, p: float = 0.5) -> None:
        with self.setup_adapter(target):
            super().__init__(target, drop=sl.Dropout(p))

    def inject(self, parent: nn.Module | None = None) -> Dropout:
        if isinstance(self.target, sl.Residual):
            self.target.append(self._drop)
            return self
        return super().inject(parent)

    @property
    def p(self) -> float:
        """The probability of an element to be zeroed; it can be set."""
        return self._drop.p

    @p.setter
    def p(self, p: float) -> None:
        self._drop.p = sl.Dropout(p).p

    @property
    def _drop(self) -> sl.Dropout:
        return cast("sl.Dropout", self["drop"])

    @classmethod
    def on(cls, model: nn.Module, *criteria: Criteria, **arguments: Any) -> Dropouts:
        return Dropouts(super().on(model, *criteria, **arguments))


class Dropouts(AdapterGroup[Dropout]):
    """Dropouts that were put in together, with one probability."""

    @property
    def p(self) -> float:
        """The probability of all; it can be set. Raises `ValueError` where they differ."""
        return self.common("p")

    @p.setter
    def p(self, p: float) -> None:
        self.set(p=p)
