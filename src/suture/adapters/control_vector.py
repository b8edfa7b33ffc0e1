"""Control vectors: a direction in the hidden states, found from contrasting prompts, that steers what a model says.

Shapes: B rows, T tokens, D width of the hidden states, N prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from suture.adapters.vector_file import read_vectors, write_vectors
from suture.layers import Chain, Composite
from suture.layers.description import register
from suture.layers.recording import recording
from suture.surgery.adapter import Adapter
from suture.surgery.criteria import Criteria
from suture.surgery.group import AdapterGroup
from suture.surgery.selection import select

if TYPE_CHECKING:
    from suture.generation import CausalLM

FORMAT = "suture.control_vector"


class Steer(nn.Module):
    """Adds `scale * direction` (D,) to hidden states (..., T, D).

    The direction is a parameter, which can be trained after `requires_grad_()`; the scale is a tensor too, so that
    changing it compiles nothing anew.

    >>> Steer(torch.tensor([1.0, 0.0]), scale=2.0)(torch.zeros(1, 2))
    tensor([[2., 0.]])
    """

    scale: Tensor

    def __init__(self, direction: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.direction = nn.Parameter(direction.detach().clone(), requires_grad=False)
        self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != self.direction.shape:  # one of width 1 would be added to every element
            raise ValueError(
                f"A direction of width {len(self.direction)} cannot be added to hidden states {tuple(x.shape)}. "
                f"Was the control vector made for another model, or for another kind of layer?"
            )
        return x + self.scale * self.direction

    def extra_repr(self) -> str:
        return f"scale={self.scale.item():.3g}"


@register("adapters.Steered")
class Steered(Chain, Adapter[nn.Module]):
    """A layer followed by a `Steer` of what it returns."""

    def __init__(self, target: nn.Module, direction: Tensor, scale: float = 1.0) -> None:
        with self.setup_adapter(target):
            super().__init__(target, steer=Steer(direction, scale))


class Steering(AdapterGroup[Steered]):
    """A control vector that is in a model, at one strength; `scale` can be read and set."""

    @property
    def scale(self) -> float:
        return cast("Steer", self.adapters[0]["steer"]).scale.item()

    @scale.setter
    def scale(self, scale: float) -> None:
        for adapter in self.adapters:
            cast("Steer", adapter["steer"]).scale.fill_(_checked_scale(scale))


class ControlVector:
    """Directions (D,) by the path of the layer that they are added to.

    Vectors are added, negated and multiplied by numbers; where only one of two has a layer, the sum has it as it is.

    Source: Representation Engineering (https://arxiv.org/abs/2310.01405).

    Example:
        >>> one = ControlVector({"blocks.3": torch.tensor([1.0, 2.0])})
        >>> (2 * one - one / 2)["blocks.3"]
        tensor([1.5000, 3.0000])
    """

    def __init__(self, directions: Mapping[str, Tensor]) -> None:
        if not directions:
            raise ValueError("A control vector has a direction for at least one layer. Received none.")
        for path, direction in directions.items():
            if direction.dim() != 1 or not direction.is_floating_point():
                raise ValueError(
                    f"A direction is a floating-point tensor of one dimension, the width of the hidden states. "
                    f"Received for {path!r}: {tuple(direction.shape)} of {direction.dtype}."
                )
        self.directions = dict(directions)

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        lm: CausalLM,
        positive: Sequence[Any],
        negative: Sequence[Any],
        layers: Criteria,
        method: Literal["mean", "pca"] = "mean",
        last: int = 4,
    ) -> Self:
        """Finds the directions that lead from what `negative` prompts have in common to what `positive` ones have.

        Each prompt is run once through the backbone; the outputs of the selected layers are read by a recording layer
        behind each, put in and taken out as an edit, and averaged over the last tokens.

        Args:
            lm: the model. Its mode is left as it is: call `lm.eval()` where it has dropout.
            positive: prompts (strings, or lists of chat messages) that show what is wanted, best full sentences whose
                opening differs from that of their counterpart in `negative` in this alone.
            negative: their counterparts.
            layers: where to steer, as in `select`: `"blocks.8-19"`.
            method: "mean" takes the difference of the means. "pca" takes the direction in which the pairs differ most
                (the first right singular vector of their differences), as long as their mean difference along it.
            last: how many tokens at the end of each prompt are averaged.

        Raises:
            TypeError: prompts of a kind are one string.
            ValueError: there are no prompts, one is empty, or for "pca" not as many positive as negative ones.
            SelectionError: `layers` selects nothing.
        """
        from suture.generation.prompts import read_prompts

        if method not in ("mean", "pca"):
            raise ValueError(f"method is 'mean' or 'pca'. Received: {method!r}.")
        if last < 1:
            raise ValueError(f"last is the number of tokens to average, at least 1. Received: {last!r}.")
        if isinstance(positive, str) or isinstance(negative, str):
            raise TypeError(
                "positive and negative are lists of prompts. Received a string: write ['...'] for one prompt."
            )
        positive, negative = list(positive), list(negative)
        if not positive or not negative:
            raise ValueError(f"fit needs prompts of both kinds. Received {len(positive)} and {len(negative)}.")
        if method == "pca" and len(positive) != len(negative):
            raise ValueError(
                f"method='pca' compares prompts in pairs. Received {len(positive)} positive, {len(negative)} negative."
            )
        rows = [read_prompts(list(prompts), lm.tokenizer).rows for prompts in (positive, negative)]
        if not all(row for prompts in rows for row in prompts):
            raise ValueError(
                "A prompt is empty, so there is no token to read an output at. Give every prompt some text."
            )
        wanted, unwanted = (_read_outputs(lm, prompts, layers, last) for prompts in rows)
        direction = _mean_difference if method == "mean" else _first_component
        return cls({path: direction(wanted[path], unwanted[path]) for path in wanted})

    def on(self, model: Composite, scale: float = 1.0) -> Steering:
        """Puts the vector in a model now, at a strength; in a `with` block, until its end, else until `eject()`.

        Raises:
            SelectionError: the model has no layer at one of the paths.
        """
        scale = _checked_scale(scale)
        adapters: list[Steered] = []
        with recording():
            for path, direction in self.directions.items():
                match = select(model, path).one()
                adapters.append(Steered(match.layer, direction, scale).inject(match.parent))
        return Steering(adapters)

    def save(self, path: str | Path) -> None:
        """Writes the vector to a safetensors file, whole or not at all."""
        write_vectors(Path(path), self.directions, FORMAT)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a vector that `save` wrote. Raises `ValueError` for a file that is none, `FileNotFoundError`."""
        return cls(read_vectors(Path(path), FORMAT))

    # Arithmetic

    def __add__(self, other: ControlVector) -> ControlVector:
        if not isinstance(other, ControlVector):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        both = {path: self[path] + other[path] for path in self.directions if path in other.directions}
        return ControlVector({**self.directions, **other.directions, **both})

    def __mul__(self, factor: float) -> ControlVector:
        return self._each(lambda direction: direction * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> ControlVector:
        return self * (1 / divisor)

    def __neg__(self) -> ControlVector:
        return self * -1

    def __sub__(self, other: ControlVector) -> ControlVector:
        return self + -other

    def __getitem__(self, path: str) -> Tensor:
        """The direction at a path, or at an end of one that is unique. Raises `KeyError` where there is none."""
        found = [each for each in self.directions if f".{each}".endswith(f".{path}")]
        if path not in self.directions and len(found) != 1:
            trouble = (
                f"several paths end so: {', '.join(found[:4])}" if found else f"it has {', '.join(self.directions)}"
            )
            raise KeyError(f"This control vector has no direction at {path!r}: {trouble}.")
        return self.directions[path if path in self.directions else found[0]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.directions)

    def __len__(self) -> int:
        return len(self.directions)

    def _each(self, function: Callable[[Tensor], Tensor]) -> ControlVector:
        return ControlVector({path: function(direction) for path, direction in self.directions.items()})

    def __repr__(self) -> str:
        paths = list(self.directions)
        where = paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]}, {len(paths)} layers"
        return f"ControlVector({where}, dim={len(self.directions[paths[0]])})"


class Recorder(nn.Module):
    """Keeps the mean of the last tokens (B, D) of each tensor (B, T, D) that passes, and returns it unchanged."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x[:, -self.last :].float().mean(dim=1))
        return x


def _read_outputs(lm: CausalLM, rows: Sequence[Sequence[int]], layers: Criteria, last: int) -> dict[str, Tensor]:
    """The outputs (N, D) of each selected layer, averaged over the last tokens of every prompt."""
    selection = select(lm, layers)
    recorders = {path: Recorder(last) for path in selection.paths}
    waiting = iter(recorders.values())
    edit = selection.wrap(lambda layer: Chain(layer, next(waiting)))
    try:
        for row in rows:
            lm.backbone(torch.tensor([row], device=lm.device))
    finally:
        edit.undo()
    return {path: torch.cat(recorder.seen) for path, recorder in recorders.items()}


def _mean_difference(positive: Tensor, negative: Tensor) -> Tensor:
    return positive.mean(0) - negative.mean(0)


def _first_component(positive: Tensor, negative: Tensor) -> Tensor:
    # Not centred: a pair's two orders are equally good examples, so the set of differences has its centre at zero.
    differences = positive - negative
    component = cast("Tensor", torch.linalg.svd(differences, full_matrices=False)[2])[0]
    return component * (differences @ component).mean()


def _checked_scale(scale: object) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(f"A scale is a finite number. Received: {scale!r}.")
    return float(scale)
