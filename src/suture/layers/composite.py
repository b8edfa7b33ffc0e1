"""The composite: a layer made of layers, which it owns, wires and calls.

Every composite is called in one way: arguments by position, and a context that is handed on from composite to
composite. Leaves receive what they declare to read from it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, cast

from torch import Tensor, nn

from suture.layers.calls import enter_call, open_block, set_pending
from suture.layers.context import Context, Declaration, Entries, Read
from suture.layers.description import Held
from suture.layers.frames import frame_for
from suture.layers.inputs import inputs_of
from suture.layers.location import locate
from suture.layers.names import check_name
from suture.layers.navigation import Navigation, checked
from suture.layers.node import Node, Slot, node_of
from suture.layers.ownership import count_anew, everything_in, set_aside, stem_of
from suture.layers.recording import Recording, may_borrow
from suture.layers.symbolic import symbolic_in
from suture.layers.ties import keeping_ties

if TYPE_CHECKING:
    from treescope.rendering_parts import RenderableTreePart

    from suture.layers.drawing import Drawing

_COPYING = "the layers that are being copied, by identity"
_WHOLE = "the composite that is being copied"

_moving: ContextVar[bool] = ContextVar("whether a tree is being cast, moved or set to a mode", default=False)


@contextmanager
def _outermost() -> Generator[bool]:
    is_outermost = not _moving.get()
    token = _moving.set(True)
    try:
        yield is_outermost
    finally:
        _moving.reset(token)


class Composite(Navigation, nn.Module):
    """A layer made of layers. Use one of its kinds: `Chain`, `Stack`, `Parallel`, `Sum`, `Residual`, ...

    Children are given by position, by keyword or in one dictionary. An unnamed child takes the name of its class, made
    unique by a suffix. A name is the child's key for ever.

    Raises:
        TypeError: a child is not a module.
        ValueError: a name cannot be used, or a composite stands somewhere else already.

    >>> from suture import layers as sl
    >>> model = sl.Chain(sl.Linear(4, 8), sl.ReLU(), down=sl.Linear(8, 4))
    >>> isinstance(model, Composite), [place.path for place in model.places()]
    (True, ['Linear', 'ReLU', 'down'])
    """

    reads: Mapping[str, Declaration] = {}
    """The context entries that the composite reads itself, for `context_inputs`."""
    writes: tuple[tuple[str, str], ...] = ()
    """The context entries, scope and key, that it writes for later readers."""

    node: Node

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Before everything else, so that a composite is known as one while it is being copied or unpickled.
        composite = super().__new__(cls)
        composite.__dict__["node"] = Node(composite)
        return composite

    def __init__(self, *layers: nn.Module | Mapping[str, nn.Module], **named: nn.Module) -> None:
        super().__init__()
        self.node.children = self._modules
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            layers, named = (), {**layers[0], **named}
        for layer in layers:
            self._attach(None, layer)
        for name, layer in named.items():
            self._attach(name, layer)

    def _attach(self, name: str | None, layer: object) -> None:
        if not isinstance(layer, nn.Module):
            raise TypeError(
                f"{type(self).__name__} is made of modules. Received for {name or f'child {len(self)}'!r}: "
                f"{layer!r:.80} ({type(layer).__name__}). A function goes in sl.Lambda(function), a list as *list."
            )
        node = node_of(layer)
        borrowed = node is not None and (node.parent is not None or (node.taken_apart and bool(node.uses)))
        if node is not None and borrowed and not may_borrow():
            raise ValueError(
                f"{type(layer).__name__} has a place already, at {node.path!r}, and a composite has one parent. "
                f"Give a copy that shares its layers, layer.structural_copy(), or edit the tree that it is in."
            )
        if name is None:
            name = self.name_for(layer)
        else:
            check_name(name, self)
        self._put(name, layer, borrowed=borrowed)

    def _put(self, name: str, layer: nn.Module, *, borrowed: bool = False) -> None:
        slot = Slot()
        self.node.insert(len(self.node.slots), slot)
        self.node.fill(slot, layer, name, None)
        self.node.own(name, layer)
        self.node.count(name, 1)
        slot.used = True
        node = node_of(layer)
        if node is not None and not borrowed:
            if node.uses:
                if node.last_owner is not None:
                    node.last_owner.node.count(node.name, -1)
                self.node.count(name, 1)
            node.parent = node.last_owner = self
            node.name = name

    def name_for(self, layer: nn.Module) -> str:
        """The name that `layer` gets here when none is given."""
        name = type(layer).__name__
        return self.node.unused(f"{name}_layer" if hasattr(type(self), name) else name)

    # Calling

    def __call__(self, *args: Any, context: Context | Entries | None = None, **entries: Any) -> Any:
        """Runs the tree on `args`.

        `context` gives entries in scopes, `entries` the same by key where one scope only is read for that key.
        """
        if (frame := frame_for(self)) is not None:
            return frame.call(args, {"context": context, **entries})
        value = symbolic_in((*args, context, *entries.values()))
        if value is not None:
            return value.call(self, args, {"context": context, **entries})
        running = enter_call(self, context, entries)
        if running.interceptor is not None:
            return running.interceptor.call_outermost(self, args, running)
        return super().__call__(*args, context=running)

    def enter(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[tuple[Any, ...], Context]:
        """What a call from outside, with these arguments, gives to `forward`."""
        entries = dict(keywords)
        return args, enter_call(self, entries.pop("context", None), entries)

    def call_slot(self, slot: Slot, args: tuple[Any, ...], context: Context) -> Any:
        """Calls the layer in a slot; an exception leaves with a note that says where it happened."""
        try:
            if context.interceptor is not None:
                return context.interceptor.call_slot(self, slot, args, context)
            return slot.call(*args) if slot.plain else slot.invoke(args, context)
        except Exception as error:
            locate(error, self, slot, args)
            raise

    def run_branches(self, args: tuple[Any, ...], context: Context | None) -> list[Any]:
        """The results of all children, each called with `args`."""
        context = Context() if context is None else context
        if context.interceptor is not None:
            return [self.call_slot(slot, args, context) for slot in self.node.filled()]
        results: list[Any] = []
        slot = None
        try:
            for slot in self.node.slots:
                if slot.plain:
                    results.append(slot.call(*args))
                elif slot.layer is not None:
                    results.append(slot.invoke(args, context))
        except Exception as error:
            if slot is not None:
                locate(error, self, slot, args)
            raise
        return results

    # Context

    def init_context(self) -> Entries:
        """The entries with which every call begins. Override it to declare defaults."""
        return {}

    def set_context(self, scope: str, entries: Mapping[str, Any]) -> None:
        """Gives entries to the next call of this tree, or of anything in it, in this thread or task."""
        set_pending(self, {scope: entries})

    def context(self, *scopes: Entries, **named: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Gives entries to every call of this tree, or of anything in it, for a block.

        Raises `ValueError` for an entry that nothing in the tree reads.

        >>> from suture import layers as sl
        >>> model = sl.Chain(sl.UseContext("side", "x"), sl.Identity())
        >>> with model.context(side={"x": 3}):
        ...     model()
        3
        """
        return open_block(self, *scopes, **named)

    @property
    def context_inputs(self) -> tuple[Read, ...]:
        """The context entries that this tree reads from outside, in the order of their first reading."""
        return inputs_of(self).reads

    @property
    def context_outputs(self) -> tuple[tuple[str, str], ...]:
        """The context entries, scope and key, that this tree writes for later readers.

        They can be read after a call that was given a `suture.Context`.

        >>> from suture import layers as sl
        >>> sl.Chain(sl.SetContext("side", "x")).context_outputs
        (('side', 'x'),)
        """
        return tuple(inputs_of(self).written.values())

    # Structure

    @property
    def parent(self) -> Composite | None:
        """The composite that calls this one; None for a root."""
        return self.node.parent

    @property
    def path(self) -> str:
        """Where this composite is owned, from the root; "" for the root."""
        return self.node.path

    @property
    def structure_version(self) -> int:
        """A number that changes with every edit in this tree."""
        return self.node.version

    def structural_copy(self) -> Self:
        """A copy of the composites that shares their leaves: another place for the same weights.

        >>> from suture import layers as sl
        >>> block = sl.Chain(sl.Linear(2, 2))
        >>> block.structural_copy()[0] is block[0]
        True
        """
        inside = everything_in(self)
        leaves = {id(leaf): leaf for leaf in inside if node_of(leaf) is None}
        tensors = {id(each): each for module in inside for each in (*module.parameters(), *module.buffers())}
        copied = self.__deepcopy__({**leaves, **tensors})
        for layer in everything_in(copied):
            if (node := node_of(layer)) is not None:
                node.shares_leaves = True
        copied.node.copy_of = (Held(self), self.node.version)
        return copied

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        inside: set[int] | None = memo.get(_COPYING)
        if inside is not None and id(self) not in inside and stem_of(self) is stem_of(memo[_WHOLE]):
            # What stands around a part is not copied with it.
            return cast("Self", None)
        if inside is None:
            memo |= {_COPYING: {id(layer) for layer in everything_in(self)}, _WHOLE: self}
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        if inside is None:
            del memo[_COPYING], memo[_WHOLE]
            count_anew(copied)
            _prepare(copied)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"node": self.node.__getstate__()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"node": self.node})
        self.node.restore(state["node"])

    def settle(self, record: Recording) -> None:
        """Called when an edit of what this composite wires was taken back. There is nothing to do."""

    # What edits took out and can put back moves with the tree. It can be around the tree that it was taken out of, when
    # layers were moved; so the outermost call has it move, once.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with _outermost() as aside:
            for layer in set_aside(self) if aside else ():
                nn.Module._apply(layer, fn, recurse=node_of(layer) is None)
            with keeping_ties(self) if aside else nullcontext():
                return super()._apply(fn, recurse)

    def train(self, mode: bool = True) -> Self:
        with _outermost() as aside:
            for layer in set_aside(self) if aside else ():
                if node_of(layer) is None:
                    layer.train(mode)
                else:
                    layer.training = mode
            return super().train(mode)

    def __copy__(self) -> Self:
        raise TypeError(
            f"copy.copy would give two {type(self).__name__}s the same children. "
            f"Use structural_copy() to share the weights, or copy.deepcopy() for weights of its own."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module) and "_modules" in self.__dict__:
            self[name] = value
        elif value is None and name in self.node.children:
            raise TypeError(f"A layer is taken out with `del model[{name!r}]`, which can be undone. Received: None.")
        else:
            nn.Module.__setattr__(self, name, cast("Any", value))

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Puts a layer at the end, as `self[name] = module` does."""
        self[name] = checked(module)

    def __delattr__(self, name: str) -> None:
        if name in self._modules:
            del self[name]
        else:
            super().__delattr__(name)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        from suture.layers.printing import tree  # printing needs the composite, and not the other way round

        return tree(self)

    def __rich__(self) -> Drawing:
        """The same in colours, where rich prints it."""
        from suture.layers.printing import drawing

        return drawing(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from suture.layers.notebook import notebook_html

        return notebook_html(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: object) -> RenderableTreePart:
        from suture.layers.notebook import treescope_part
        from suture.layers.printing import drawing

        return treescope_part(drawing(self))


def _prepare(copied: Composite) -> None:
    """Finds how everything in a copy is called, now that all of it is there: compiled code could not."""
    for layer in everything_in(copied):
        node = node_of(layer)
        for slot in node.filled() if node is not None else ():
            slot.prepare()
