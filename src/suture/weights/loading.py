"""Putting a checkpoint's tensors into a tree that was made on the meta device.

Nothing is written before everything is known to fit: what is missing, what is left over and what has another shape is
one error that names each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from suture.weights.checkpoint import Checkpoint, CheckpointError, StoredTensor
from suture.weights.names import NameTable, Rule

WHOLE = re.compile(r"BOOL|[IUC]\d+")
"""Element types that are no real numbers. Where weights are of one, something else says how to read them."""


@contextmanager
def without_values() -> Generator[None]:
    """For a block: layers are made with the shapes of their tensors only, on the meta device.

    Example:
        >>> with without_values():
        ...     layer = nn.Linear(2, 3)
        >>> layer.weight
        Parameter containing:
        tensor(..., device='meta', size=(3, 2), requires_grad=True)
    """
    with torch.device("meta"), _NoInitialisation():
        yield


class _NoInitialisation(TorchFunctionMode):
    """Leaves out the filling of tensors that have no values; torch would load its compiler for some of it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@dataclass
class Place:
    """Where one tensor goes: every module and attribute that holds it, more than one where it is tied."""

    tensor: torch.Tensor
    keys: list[str] = field(default_factory=list[str])
    holders: list[tuple[nn.Module, str]] = field(default_factory=list[tuple[nn.Module, str]])


@dataclass(frozen=True)
class Source:
    """One stored tensor with the places that it is for, more than one where the checkpoint has fused them."""

    stored: StoredTensor
    rule: Rule
    places: Sequence[Place]

    def read(self, dtype: torch.dtype, device: torch.device | str) -> Sequence[torch.Tensor]:
        """The tensor of each place, in storage of its own."""
        first = self.places[0].tensor
        dtype = dtype if first.is_floating_point() else first.dtype
        rows = [place.tensor.shape[:1] for place in self.places]
        shape = first.shape if len(rows) == 1 else (sum(row.numel() for row in rows), *first.shape[1:])
        # What is subtracted is subtracted before the values are rounded to the dtype.
        whole = torch.empty(shape, dtype=torch.float32 if self.rule.added else dtype, device=device)
        self.stored.copy_to(self.rule.layout(whole))
        if self.rule.added:
            whole = whole.sub_(self.rule.added).to(dtype)
        if len(rows) == 1:
            return [whole]
        parts = torch.split(whole, [row.numel() for row in rows])
        return [part.clone() for part in parts]


def load(
    checkpoint: Checkpoint,
    names: NameTable,
    modules: Mapping[str, nn.Module],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> None:
    """Give every parameter and buffer of `modules` its tensor from `checkpoint`.

    The modules are made in a `without_values` block, so nothing was allocated or initialised for them. Each
    floating-point tensor is read straight into its final place, in `dtype` on `device`. A parameter that several layers
    share stays shared.

    Args:
        checkpoint: Where the values come from.
        names: Says which stored tensor is which key.
        modules: The parts of the tree by the first name of their keys, such as `backbone` and `head`.
        dtype: The dtype of the loaded parameters.
        device: The device of the loaded parameters.

    Raises:
        CheckpointError: Tensors are missing, left over or of another shape (one error names each), tensors that the
            tree ties differ in the checkpoint, or a file is damaged. The first is found before anything is written.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from safetensors.torch import save_file
        >>> from suture.weights.folder import open_folder
        >>> with without_values():
        ...     head = nn.Linear(2, 3, bias=False)
        >>> with tempfile.TemporaryDirectory() as name:
        ...     _ = Path(name, "config.json").write_text(json.dumps({"model_type": "example"}))
        ...     save_file({"lm_head.weight": torch.ones(3, 2)}, Path(name, "model.safetensors"))
        ...     load(open_folder(Path(name)), NameTable((Rule("lm_head", "head"),)), {"head": head})
        >>> head(torch.ones(2)).tolist()
        [2.0, 2.0, 2.0]
    """
    places = _places(modules)
    read: dict[int, tuple[StoredTensor, torch.Tensor]] = {}
    for source in _match(checkpoint, names, places):
        for place, value in zip(source.places, source.read(dtype, device), strict=True):
            first, before = read.setdefault(id(place), (source.stored, value))
            _check_tied(checkpoint, first, source.stored, before is value or torch.equal(before, value))
    for place in places:
        _put(place, read[id(place)][1])


def _places(modules: Mapping[str, nn.Module]) -> list[Place]:
    by_identity: dict[int, Place] = {}
    for prefix, module in modules.items():
        for key, holder, name, tensor in _tensors(module, prefix):
            place = by_identity.setdefault(id(tensor), Place(tensor))
            place.keys.append(key)
            place.holders.append((holder, name))
    return list(by_identity.values())


def _tensors(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    state = module.state_dict(prefix=f"{prefix}.", keep_vars=True)
    for key, tensor in state.items():
        path, _, name = key.rpartition(".")
        yield key, module.get_submodule(path.removeprefix(prefix).removeprefix(".")), name, tensor


def _match(checkpoint: Checkpoint, names: NameTable, places: Sequence[Place]) -> list[Source]:
    place_of = {key: place for place in places for key in place.keys}
    sources: list[Source] = []
    unknown: list[str] = []
    misshapen: list[str] = []
    packed: list[str] = []
    for name, stored in checkpoint.tensors.items():
        keys, rule = names.to_tree(name) or ((), None)
        targets = [place_of[key] for key in keys if key in place_of]
        if rule is None or len(targets) != len(keys):
            if not names.is_ignored(name):
                unknown.append(name)
            continue
        expected = rule.shape([place.tensor for place in targets])
        if targets[0].tensor.is_floating_point() and WHOLE.fullmatch(stored.kind):
            packed.append(f"{name} is {stored.kind}")
        if stored.shape != expected:
            misshapen.append(f"{name} is {list(stored.shape)} where {list(expected)} is expected")
        sources.append(Source(stored, rule, targets))
    found = {id(place) for source in sources for place in source.places}
    missing = dict.fromkeys(_stored_name(names, place) for place in places if id(place) not in found)
    complaints = [
        f"missing: {fold(missing)}" if missing else "",
        f"left over: {fold(unknown)}" if unknown else "",
        f"of another shape: {'; '.join(misshapen)}" if misshapen else "",
        f"of a type that holds no weights as they are: {'; '.join(packed)}" if packed else "",
    ]
    if any(complaints):
        raise CheckpointError(
            f"The tensors of {checkpoint.path} are not those of the model it describes. "
            + ". ".join(complaint[0].upper() + complaint[1:] for complaint in complaints if complaint)
            + ". Nothing was loaded. Check that the configuration and the weights belong together."
        )
    return sources


def _stored_name(names: NameTable, place: Place) -> str:
    translated = names.to_stored(place.keys[0])
    return translated[0] if translated else place.keys[0]


def _check_tied(checkpoint: Checkpoint, first: StoredTensor, other: StoredTensor, equal: bool) -> None:
    if not equal:
        raise CheckpointError(
            f"{checkpoint.path} says that {first.name} and {other.name} are one tensor, but they differ. "
            "If they are meant to differ, set tie_word_embeddings to false in its configuration; if not, delete one."
        )


def _put(place: Place, value: torch.Tensor) -> None:
    if isinstance(place.tensor, nn.Parameter):
        value = nn.Parameter(value, requires_grad=place.tensor.requires_grad)
    for holder, name in place.holders:
        setattr(holder, name, value)


def fold(names: Iterable[str]) -> str:
    """Names in one line, those that differ in one number only said once.

    Example:
        >>> fold(["norm.weight", "layers.0.up.bias", "layers.1.up.bias", "layers.2.up.bias", "layers.7.up.bias"])
        'norm.weight, layers.{0-2,7}.up.bias'
    """
    numbers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for name in names:
        found = re.search(r"(?<=\.)\d+(?=\.)", name)
        pattern = (name[: found.start()], name[found.end() :]) if found else (name, "")
        numbers[pattern].extend([int(found.group())] if found else [])
    return ", ".join(before + _ranges(found) + after for (before, after), found in numbers.items())


def _ranges(numbers: list[int]) -> str:
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "{" + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "}"
