"""torch's fake tensors, which have a shape, a dtype and a device but no values, in the place of a model's tensors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from suture.layers.cache import Cache


class Fakes:
    """Makes the fakes of a model and of what it is called with; operations on them belong in a block of `mode`.

    What is on the meta device is taken to be where the rest is.
    """

    def __init__(self, model: nn.Module, given: object) -> None:
        # Tensors that are no parameters and no buffers are met on the way.
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        tensors = [*model.parameters(), *model.buffers()]
        self.dtype = next((each.dtype for each in tensors if each.is_floating_point()), torch.get_default_dtype())
        everything = [*tensors, *tensors_in(given)]
        placed = (tensor.device for tensor in everything if tensor.device.type != "meta")
        self.device = next(placed, torch.device("cpu"))
        self._made: dict[int, Tensor] = {}

    def of_state(self, model: nn.Module) -> dict[str, Tensor]:
        """The fakes of all parameters and buffers, by every name that they have."""
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        return {name: self.of_tensor(tensor) for name, tensor in named}

    def of_tensor(self, tensor: Tensor) -> Tensor:
        """The fake of a tensor: one for each, so that what is tied stays tied."""
        if id(tensor) not in self._made:
            device = self.device if tensor.device.type == "meta" else tensor.device
            with self.mode:
                fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
                parameter = isinstance(tensor, nn.Parameter)
                self._made[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if parameter else fake
        return self._made[id(tensor)]

    def of(self, value: Any) -> Any:
        """A value as the model gets it: fakes for the tensors in it, and a tensor for a shape."""
        with self.mode:
            if is_shape(value):
                return torch.empty(value, dtype=self.dtype, device=self.device)
            if isinstance(value, Cache):
                return value.copy()
        return pytree.tree_map_only(Tensor, self.of_tensor, value)


class OneDtype(TorchDispatchMode):
    """Refuses products of tensors of several dtypes, as the kernels do; fakes alone would let them pass."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket in _PRODUCTS:
            dtypes = [str(each.dtype).removeprefix("torch.") for each in args if isinstance(each, Tensor)]
            if len(set(dtypes)) > 1:
                raise RuntimeError(f"{func.overloadpacket} takes tensors of one dtype; received {', '.join(dtypes)}.")
        return func(*args, **(kwargs or {}))


_aten = torch.ops.aten
_PRODUCTS: set[object] = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm}


def is_shape(value: object) -> TypeGuard[tuple[int, ...] | list[int]]:
    """Whether a value is a shape: a `torch.Size`, or whole numbers in a tuple or a list.

    >>> is_shape((2, 3)), is_shape([2, 3.0]), is_shape(())
    (True, False, False)
    """
    if isinstance(value, torch.Size):
        return True
    if not isinstance(value, tuple | list) or not value:
        return False
    return all(isinstance(size, int) and not isinstance(size, bool) for size in cast("tuple[object, ...]", value))


def tensors_in(value: object) -> list[Tensor]:
    """The tensors in nested tuples, lists and dictionaries."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def on_meta(value: Any) -> Any:
    """The same with its tensors on the meta device, which may live on when the mode of the fakes has ended."""

    def converted(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")

    return pytree.tree_map_only(Tensor, converted, value)


@contextmanager
def quiet() -> Generator[None]:
    """Keeps torch from logging a traceback of its own for the error that is about to be raised."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    thread = threading.get_ident()
    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


@contextmanager
def left_alone(modules: Iterable[nn.Module]) -> Generator[None]:
    """Puts the attributes of modules back as they were, whatever their layers keep for themselves in the block."""
    attributes = [vars(module) for module in modules]
    containers = [each for held in attributes for each in held.values() if type(each) in (dict, list, set)]
    saved = [(container, container.copy()) for container in (*attributes, *containers)]
    try:
        yield
    finally:
        for container, content in saved:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)
