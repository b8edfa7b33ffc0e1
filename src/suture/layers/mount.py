"""Editing inside plain modules: the place of one of their layers as a composite.

A plain module calls what stands under a name of its own, so a layer put around another must stand under that name. The
first edit of such a place puts a `Mount` there, which owns the layer under the name that it had; every edit is then
made inside, as in any tree. When the last one is undone the mount goes, and the module is as it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from suture.layers.calls import enter_call
from suture.layers.chain import Chain
from suture.layers.context import HANDED_ON, Context
from suture.layers.node import children_of, node_of
from suture.layers.ownership import release
from suture.layers.recording import EditError, Recording, recording

if TYPE_CHECKING:
    from suture.layers.composite import Composite


class Holder(nn.Module):
    """Holds layers under their names, and is not called: a layer that stood in its place would not be either."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path


class Mount(Chain):
    """The place of a layer in a plain module.

    It is called as the layer was. The first argument flows through what stands here; further arguments and keywords go
    to the layer that has the name of the place, and anything in the mount can read them from the context, as the
    entries of the scope `"call"`. Attributes that the mount does not have are those of the layer.

    >>> from suture import layers as sl, select
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> edit = select(model, "0").insert_after(sl.Dropout(0.1))
    >>> list(model.state_dict()), model[0].in_features
    (['0.0.weight', '0.0.bias'], 2)
    >>> edit.undo()
    >>> list(model.state_dict())
    ['0.weight', '0.bias']
    """

    def __init__(self, around: nn.Module, name: str, path: str) -> None:
        super().__init__()
        layer = children_of(around)[name]
        # Past torch's rules for attributes: neither is a child by being known.
        self.__dict__["_place"] = (around, name)
        self.__dict__["_layer"] = (layer,)
        self.training = around.training
        self.node.path_around = path
        # A name that would hide a method here is not the one under which torch finds the layer.
        hides = hasattr(type(self), name) or name in self.__dict__
        self.__dict__["_inner"] = inner = f"{name}_layer" if hides else name
        self.node.hands_on_to = inner
        self._put(inner, layer)
        parameters = _parameters_of(layer)
        self.__dict__["_first"] = next(iter(parameters), None)
        self.writes = tuple(("call", parameter) for parameter in parameters)
        # In eval mode nn.TransformerEncoderLayer computes with the weights of its layers and calls none of them, unless
        # something in it has a hook.
        self.register_forward_pre_hook(_be_called)

    @property
    def place(self) -> tuple[nn.Module | None, str]:
        """The plain module that this mount stands in, and the name. None for a copy made without the module."""
        return self.__dict__["_place"]

    @property
    def mounted(self) -> Any:
        """The layer that stood here before every edit; typed so that its attributes may be read."""
        return self.__dict__["_layer"][0]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is changed here, and nothing that was can return."""
        slots = self.node.slots
        return len(slots) == 1 and slots[0].layer is self.mounted and not slots[0].swaps

    def name_for(self, layer: nn.Module) -> str:
        # Beside the layer, as in a tree; so that no two mounts of one module give one name.
        return self.node.unused(f"{self.__dict__['_inner']}+{type(layer).__name__}")

    def logical_name(self, name: str) -> str:
        """The name, beside the others in the plain module, of what is owned here as `name`."""
        return self.place[1] + name.removeprefix(self.__dict__["_inner"])

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        args, context = self.enter(args, keywords)
        return nn.Module.__call__(self, *args, context=context)

    def enter(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[tuple[Any, ...], Context]:
        context = enter_call(self, None, {})
        first: str | None = self.__dict__["_first"]
        if not args and first is not None and first in keywords:
            keywords = dict(keywords)
            args = (keywords.pop(first),)
        for (scope, name), value in zip(self.writes[1:], args[1:], strict=False):
            context.set(scope, name, value)
        for name, value in keywords.items():
            context.set("call", name, value)
        context.set(HANDED_ON.scope, HANDED_ON.key, (args[1:], keywords))
        return args[:1], context

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_layer" not in self.__dict__:
                raise
        standing = [slot.layer for slot in self.node.filled() if slot.handed_on]
        return getattr(standing[0] if standing else self.mounted, name)

    def __setattr__(self, name: str, value: Any) -> None:
        known = name in self.__dict__ or hasattr(type(self), name) or "_layer" not in self.__dict__
        if known or isinstance(value, nn.Module) or not hasattr(self.mounted, name):
            super().__setattr__(name, value)
        else:
            setattr(self.mounted, name, value)

    def settle(self, record: Recording) -> None:
        """Leaves the place to the layer when nothing is changed here any more."""
        (around, name), layer = self.place, self.mounted
        if around is None or not self.is_idle or children_of(around).get(name) is not self:
            return
        _put_under(record, around, name, layer)
        release(record, layer)
        if (
            self.node.history is not None
            and (node := node_of(layer)) is not None
            and (tree := node.module()) is not None
        ):
            self.node.history.move_into(record, tree, self.__dict__["_inner"])

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        # A module being copied is known before what is in it; one that is not known is not copied with the mount.
        memo.setdefault(id(self.place[0]), None)
        return super().__deepcopy__(memo)


def mount(around: nn.Module, name: str, path: str = "") -> Mount:
    """The mount under `name` in a plain module, put there if there is none; `path` is where the module is.

    Raises `EditError` for what is not called under its name.
    """
    layer = children_of(around)[name]
    if isinstance(layer, Mount):
        return layer
    if isinstance(layer, Holder):
        raise EditError(
            f"{layer.path!r} is a composite of the tree that a graph was made of. The graph "
            "calls its layers one by one, so nothing can be put in its place: suture.rewire(graph, call) makes a graph "
            "in which something else happens there."
        )
    if isinstance(layer, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
        raise EditError(
            f"{'.'.join(filter(None, [path, name]))!r} is a {type(layer).__name__}, which is not called: "
            f"{type(around).__name__} goes through what is in it. Select that instead: '{name}.*'."
        )
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        raise EditError(
            f"{'.'.join(filter(None, [path, name]))!r} is not called: {type(around).__name__} reads its weight. "
            "Edit around the attention, or replace it by sl.SelfAttention, whose projections are called."
        )
    with recording() as record:
        release(record, layer)
        mounted = Mount(around, name, path)
        _put_under(record, around, name, mounted)
    return mounted


def caller_in(around: nn.Module, layer: nn.Module) -> Composite:
    """The composite that calls `layer` for a plain module, which gets a mount where there is none.

    Raises:
        LookupError: the module does not call the layer.
        ValueError: it has it at several places.
    """
    names = [
        name
        for name, child in children_of(around).items()
        if child is layer or (isinstance(child, Mount) and child.find_parent(layer) is not None)
    ]
    if len(names) != 1:
        trouble = f"stands at {len(names)} places, {', '.join(names)}, of" if names else "is not a child of"
        raise (ValueError if names else LookupError)(
            f"{type(layer).__name__} {trouble} this {type(around).__name__}, whose children are: "
            f"{', '.join(children_of(around)) or 'none'}. Select the place: select(model, path)."
        )
    composite = mount(around, names[0]).find_parent(layer)
    if composite is None:
        raise LookupError(f"{type(layer).__name__} is not called at {names[0]!r} of this {type(around).__name__}.")
    return composite


def _be_called(mounted: nn.Module, args: tuple[Any, ...]) -> None:
    """Does nothing, as a hook."""


def _put_under(record: Recording, around: nn.Module, name: str, layer: nn.Module) -> None:
    record.on_rollback(around.register_module, name, children_of(around)[name])
    around.register_module(name, layer)


def logical_keys(model: nn.Module) -> dict[str, str]:
    """The keys of `model.state_dict()`, each with the key without the names of mounts.

    For what a model had before it was edited these are the keys that it had.
    """
    mounts = {path: module for path, module in _named_modules(model) if isinstance(module, Mount)}
    return {key: _without(mounts, key) for key in model.state_dict()}


def _named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    # torch does not say what the names and modules are when it shall give all of them.
    yield from model.named_modules(remove_duplicate=False)


def _without(mounts: Mapping[str, Mount], key: str) -> str:
    names: list[str] = []
    physical: list[str] = []
    around: Mount | None = None
    for name in key.split("."):
        physical.append(name)
        names.append(name if around is None else around.logical_name(name))
        around = mounts.get(".".join(physical))
        if around is not None:
            names.pop()
    return ".".join(names)


def _parameters_of(layer: nn.Module) -> Mapping[str, inspect.Parameter]:
    """What a layer is called with, by name; nothing where that cannot be known, or is a context."""
    if node_of(layer) is not None:
        return {}
    try:
        parameters = inspect.signature(layer.forward).parameters
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in named}
