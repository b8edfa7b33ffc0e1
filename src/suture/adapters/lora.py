"""LoRA: a matrix of low rank beside a layer, which is trained instead of the layer.

Shapes: I inputs and O outputs of a layer, R the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.adapters.low_rank import (
    Scale,
    Zeros,
    ensure_supported,
    is_transposed,
    matrix_shape,
    pair_beside,
    product,
    with_added,
)
from suture.layers.description import register
from suture.layers.recording import EditError
from suture.surgery.criteria import Criteria
from suture.surgery.merging import MergeableAdapter, MergeableGroup
from suture.surgery.selection import Selection, select
from suture.surgery.survey import SelectionError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What a LoRA can be trained in."""


class LoRAArguments(TypedDict, total=False):
    """The keyword arguments of `LoRA` and `LoRA.on`; `LoRA` says what they mean."""

    rank: int
    alpha: float | None
    name: str
    dropout: float
    dtype: torch.dtype | None
    split: Mapping[str, int] | None
    parts: Iterable[str] | None


class LowRank(sl.Chain):
    """The branch of a `LoRA`: `down`, `up` and `scale`, or `parts` of them, and what casts and drops on the way."""


@register("adapters.LoRA")
class LoRA(sl.Sum, MergeableAdapter[nn.Module]):
    """`layer(x) + scale * up(down(x))`, of which `down` (R, I) and `up` (O, R) are trained; zero at the start.

    `LoRA.on(model, "query", "value", rank=8)` injects one at every selected place and returns a group, which saves and
    merges all. Layers may be linear (weights stored either way) or convolutions. Beside a convolution with groups,
    each group has a rank of its own.

    A fused projection is adapted as one layer, unless its parts are named in the order in which it has them: then each
    part, or each of those chosen, has a pair of its own, as if it were a layer.

    `LoRA.on(model, "c_attn", split={"query": 768, "key": 768, "value": 768}, parts=("query", "value"))`

    Args:
        target: The layer.
        rank: R.
        alpha: The scale is `alpha / rank`; by default `alpha` is `rank`, and the scale 1.
        name: Of its branch, and what tells it from another LoRA on the same layer.
        dropout: The probability with which elements of its input are zeroed while training.
        dtype: Of `down` and `up`, and what they compute in; by default that of the place.
        split: The names and numbers of outputs of the parts of a fused projection.
        parts: Which of them are adapted; by default all.

    Raises:
        TypeError: the layer is not one that can be adapted, or quantised.
        ValueError: a number makes no sense, or the parts are not those of the layer.

    Source: https://arxiv.org/abs/2106.09685.

    Example:
        >>> model = sl.Chain(query=sl.Linear(4, 4))
        >>> with LoRA.on(model, "query", rank=2, alpha=4) as group:
        ...     print(model)
        ...     group.scale = 0.5
        Chain                         36 float32 parameters
        └─ query+LoRA: LoRA(rank=2)                      36
           ├─ query: Linear(4 → 4)  (owned by the root)  20
           └─ lora: LowRank                              16
              ├─ down: Linear(4 → 2, bias=False)          8
              ├─ up: Linear(2 → 4, bias=False)            8
              └─ scale: Scale(2)
    """

    def __init__(
        self,
        target: nn.Module,
        rank: int = 8,
        alpha: float | None = None,
        name: str = "lora",
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        split: Mapping[str, int] | None = None,
        parts: Iterable[str] | None = None,
    ) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"The rank of a LoRA is a whole number, at least 1. Received: {rank!r}.")
        if dropout != dropout:
            raise ValueError("The dropout of a LoRA is a probability. Received: nan.")
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"A LoRA computes in {', '.join(map(str, DTYPES))}. Received: {dtype!r}.")
        ensure_supported(target)
        self.rank = rank
        self.alpha = float(rank if alpha is None else _finite("alpha", alpha))
        self.dtype = dtype
        self.split = None if split is None else dict(split)
        self.parts = _chosen_parts(target, self.split, parts)
        layers: dict[str, nn.Module] = {"dropout": sl.Dropout(dropout)} if dropout else {}
        if self.split is None:
            layers |= pair_beside(target, rank)
        else:
            layers["parts"] = sl.Concatenate(
                {
                    part: sl.Chain(pair_beside(target, rank, size)) if part in self.parts else Zeros(size)
                    for part, size in self.split.items()
                }
            )
        layers["scale"] = Scale(self.alpha / rank, cast("Tensor", target.weight).device)
        if dtype is not None:
            layers = {"cast": sl.ToDtype(dtype), **layers, "cast_back": sl.ToDtype(dtype)}
        with self.setup_adapter(target):
            super().__init__(target, **{name: LowRank(layers)})
        self.adapter_name = name

    @classmethod
    def on(cls, model: nn.Module, *criteria: Criteria, **arguments: Unpack[LoRAArguments]) -> LoRAs:
        """Injects a LoRA at every place that meets any of the criteria of `select`, now, and returns them as a group.

        Layers of other LoRAs are left out. Arguments and errors are those of `LoRA`, and of `select`.
        """
        return LoRAs(super().on(model, *criteria, **arguments))

    @classmethod
    def load(cls, model: nn.Module, path: str | Path) -> LoRAs:
        """Injects what `LoRAs.save` wrote, at the places that it was saved for. All or nothing.

        `path` is a file of ours, or a folder of PEFT, for a model of transformers or one read from its checkpoint.

        Raises:
            CheckpointError: the file is damaged, not one of LoRAs, or asks for what is not understood.
            LookupError: the model has no layer at a path that the file names.
            ValueError: a layer is of another shape.
        """
        from suture.adapters import lora_file, peft_folder  # which make LoRAs

        path = Path(path).expanduser()
        stored = peft_folder.read(model, path) if path.is_dir() else lora_file.read(path)
        return lora_file.put_in(model, stored, path)

    @classmethod
    def targets_in(cls, model: nn.Module, *criteria: Criteria) -> Selection:
        places = select(model, *criteria).outermost().where(lambda match: not _is_in_branch(match.parent))
        if not places:
            raise SelectionError(f"All that was selected in {type(model).__name__} are layers of LoRAs.")
        return places

    def inject(self, parent: nn.Module | None = None) -> LoRA:
        weights = [(parameter, parameter.data) for parameter in self.branch.parameters()]
        super().inject(parent)
        self._refuse_another_of_its_name()
        if self.dtype is not None:
            # What goes in takes on the dtype of its place; these have one that was asked for.
            for parameter, values in weights:
                parameter.data = values.to(parameter.device, self.dtype)
            self._settle_casts()
        return self

    def unmerge(self) -> None:
        super().unmerge()
        self._settle_casts()

    def merged(self, layer: nn.Module) -> nn.Module:
        """A copy of `layer` with what this adds in its weight, summed in at least float32 and rounded once."""
        with torch.no_grad():
            if self.split is None:
                added = product(self.branch, layer)
            else:
                inputs = matrix_shape(layer)[1]
                added = torch.cat(
                    [
                        product(cast("sl.Chain", self.branch[f"parts.{part}"]), layer)
                        if part in self.parts
                        else self._factor.new_zeros(size, inputs)
                        for part, size in self.split.items()
                    ]
                )
            return with_added(layer, added * self._factor)

    @property
    def branch(self) -> sl.Chain:
        """What it adds to its target, a chain named after the LoRA."""
        return cast("sl.Chain", self[self.adapter_name])

    @property
    def scale(self) -> float:
        """The factor of what it adds; it can be set, also while merged."""
        return self._factor.item()

    @scale.setter
    def scale(self, scale: float) -> None:
        self._factor.fill_(_finite("scale", scale))
        self.merge_anew()

    @property
    def arguments(self) -> dict[str, object]:
        """What it was made with, besides its target, as data."""
        return {
            "rank": self.rank,
            "alpha": self.alpha,
            "name": self.adapter_name,
            "dropout": sum(layer.p for layer in self.branch.layers(sl.Dropout)),
            "dtype": None if self.dtype is None else str(self.dtype).removeprefix("torch."),
            "split": self.split,
            "parts": None if self.split is None else list(self.parts),
        }

    @property
    def _factor(self) -> Tensor:
        return cast("Scale", self.branch["scale"]).factor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._settle_casts()
        return self

    def _settle_casts(self) -> None:
        """Casts to what the weights are now: a tree that is converted as a whole converts them as well."""
        if self.dtype is not None:
            self.dtype = next(self.branch.parameters()).dtype
            cast("sl.ToDtype", self.branch["cast"]).dtype = self.dtype
            cast("sl.ToDtype", self.branch["cast_back"]).dtype = cast("Tensor", self.target.weight).dtype

    def _refuse_another_of_its_name(self) -> None:
        around = self.parent
        while isinstance(around, LoRA):
            if around.adapter_name == self.adapter_name:
                raise EditError(
                    f"There is a LoRA named {self.adapter_name!r} on this layer already, at {around.path!r}. "
                    f"Give this one another name: LoRA.on(..., name=...)."
                )
            around = around.parent

    def extra_repr(self) -> str:
        return f"rank={self.rank}" + ("" if self.split is None else f", parts={', '.join(self.parts)}")


class LoRAs(MergeableGroup[LoRA]):
    """LoRAs that act as one: `inject`, `eject`, `merge`, `unmerge`, `scale`, `parameters`, `save`."""

    def save(self, path: str | Path) -> None:
        """Writes their weights to a safetensors file of their own, whole or not at all; `LoRA.load` reads it.

        Raises:
            ValueError: one was never injected, so it has no place.
        """
        from suture.adapters.lora_file import save  # which makes LoRAs

        save(self.adapters, Path(path))


def _chosen_parts(layer: nn.Module, split: Mapping[str, int] | None, parts: Iterable[str] | None) -> tuple[str, ...]:
    """The parts of a fused projection that are adapted, in its order."""
    if split is None:
        if parts is not None:
            raise ValueError("parts are those of a fused projection: say what it is made of with split={name: size}.")
        return ()
    if not isinstance(layer, nn.Linear) and not is_transposed(layer):
        raise TypeError(f"Only a linear layer can be split in parts. Received: {type(layer).__name__}.")
    outputs = matrix_shape(layer)[0]
    if sum(split.values()) != outputs or min(split.values(), default=0) < 1:
        raise ValueError(
            f"The parts of this {type(layer).__name__} have {outputs} outputs together. "
            f"Received: {split}, which are {sum(split.values())}."
        )
    chosen = list(split) if parts is None else [parts] if isinstance(parts, str) else list(parts)
    unknown = [part for part in chosen if part not in split]
    if unknown or not chosen:
        raise ValueError(f"Choose parts of {', '.join(split)}. Received: {', '.join(map(repr, chosen)) or 'none'}.")
    return tuple(part for part in split if part in chosen)


def _is_in_branch(parent: nn.Module | None) -> bool:
    """Whether a composite is in the branch of a LoRA, whose layers no other LoRA adapts."""
    while isinstance(parent, sl.Composite) and not isinstance(parent, LowRank):
        parent = parent.parent
    return isinstance(parent, LowRank)


def _finite(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"The {what} of a LoRA is a finite number. Received: {value!r}.")
    return float(value)
