"""Adapters: changes of a model made from outside, which go in and out again as one thing.

An adapter says only the way in. Every edit made during `inject` is recorded, and `eject` undoes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from torch import nn

from suture.layers import edit
from suture.layers.composite import Composite
from suture.layers.edit import undo_swaps
from suture.layers.history import note_adapter
from suture.layers.mount import caller_in
from suture.layers.navigation import checked
from suture.layers.node import Slot
from suture.layers.ownership import home_of, wired_sites
from suture.layers.recording import EditError, borrowing, current_author, on_rollback, recording
from suture.layers.swap import Swap
from suture.surgery.last_place import LastPlace

if TYPE_CHECKING:
    from suture.surgery.criteria import Criteria
    from suture.surgery.group import AdapterGroup
    from suture.surgery.selection import Selection

T = TypeVar("T", bound=nn.Module)
P = ParamSpec("P")
R = TypeVar("R")


class Adapter(Generic[T]):
    """A layer that takes the place of another, its target, and can give it back.

    Derive from it beside the class of the layer, and build the layer around the target in `setup_adapter`. Override
    `inject` for edits inside the target; a hand-written `eject` may put things back itself and then call
    `super().eject()`, which undoes what is left.

    Example:
        >>> from suture import layers as sl
        >>> class Doubled(sl.Sum, Adapter[sl.Linear]):
        ...     def __init__(self, target: sl.Linear) -> None:
        ...         with self.setup_adapter(target):
        ...             super().__init__(target, target)
        >>> model = sl.Chain(sl.Linear(2, 2), sl.ReLU())
        >>> adapter = Doubled(model[0]).inject(model)
        >>> type(model[0]).__name__
        'Doubled'
        >>> adapter.eject()
        >>> type(model[0]).__name__
        'Linear'
    """

    if TYPE_CHECKING:
        # What `setup_adapter` leaves: the target, and the edits that put the adapter in.
        _adapted: tuple[T]
        _injected: list[Swap] | None
        _brought: tuple[nn.Module, ...]

    adapter_name: str
    """What it goes by, in groups and files: the name of its class, unless its author gives each one a name."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "adapter_name" not in cls.__dict__:
            cls.adapter_name = cls.__name__
        # An author's inject and eject may be written anywhere in a hierarchy, and each may call the one above; the
        # outermost call is the one that records.
        methods: dict[str, Callable[[Any], Any]] = {"inject": Adapter.injecting, "eject": Adapter.ejecting}
        for name, around in methods.items():
            if name in cls.__dict__:
                setattr(cls, name, _within(around, cls.__dict__[name]))

    @classmethod
    def on(cls, model: nn.Module, *criteria: Criteria, **arguments: Any) -> AdapterGroup[Self]:
        """Injects an adapter of this class at every place that meets any of the criteria of `select`, now.

        `arguments` are those of the class, without the target. The adapters are one thing: `eject` takes out all, and
        in a block, `with X.on(...):`, they go out at its end.

        Raises:
            SelectionError: a criterion selects nothing.
        """
        from suture.surgery.group import AdapterGroup  # a group is made of adapters, and not the other way round

        # What can be gone through once is gone through here, and not by the first adapter alone.
        given = {
            name: tuple(cast("Iterator[object]", value)) if isinstance(value, Iterator) else value
            for name, value in arguments.items()
        }
        adapters: list[Self] = []
        with recording():
            for match in cls.targets_in(model, *criteria):
                try:
                    adapter = cast("Any", cls)(match.layer, **given)
                    adapter.inject_at(*match.open(), match.path)
                except Exception as error:
                    error.add_note(f"This was for the {type(match.layer).__name__} at {match.path!r}.")
                    raise
                adapters.append(adapter)
        return AdapterGroup(adapters)

    @classmethod
    def targets_in(cls, model: nn.Module, *criteria: Criteria) -> Selection:
        """Where `on` injects: of what is selected, the outermost. Override it to leave places out."""
        from suture.surgery.selection import select  # a selection injects adapters

        return select(model, *criteria).outermost()

    @property
    def target(self) -> T:
        """The layer that is adapted. Raises `EditError` before `setup_adapter`."""
        if "_adapted" not in self.__dict__:
            raise EditError(
                f"{type(self).__name__} has no target yet. Build it in: with self.setup_adapter(target): ..."
            )
        return self._adapted[0]

    @property
    def target_path(self) -> str | None:
        """Where its target is owned, or was when it went in last; None where it has not been in a tree yet."""
        last: LastPlace | None = self.__dict__.get("_last_place")
        return None if last is None else last.path

    @property
    def is_injected(self) -> bool:
        """Whether its edits stand; undoing them by other means takes it out as well."""
        swaps: list[Swap] | None = self.__dict__.get("_injected")
        return swaps is not None and (not swaps or any(swap.live for swap in swaps))

    @property
    def brought(self) -> tuple[nn.Module, ...]:
        """The layers that it put in, composites and what they call each by itself; not what was there before.

        What later edits put into them is not of the adapter. Empty while it is not injected.
        """
        # A copy of a part leaves out what stood around it.
        return tuple(layer for layer in self.__dict__.get("_brought", ()) if isinstance(layer, nn.Module))

    @contextmanager
    def setup_adapter(self, target: T) -> Generator[None]:
        """Names the target; a layer built inside may hold it although it stands in its model."""
        checked(target)
        # In a tuple and past torch's own attribute rules, since the target is not a child by being the target.
        self.__dict__["_adapted"] = (target,)
        self.__dict__["_injected"] = None
        with borrowing():
            yield

    # Any, so that an author may say which parent is expected.
    def inject(self, parent: Any = None) -> Self:
        """Puts the adapter where its target stands.

        `parent`, the composite or the plain module that calls the target, is needed for a leaf, which does not know
        where it stands; after an `eject` it goes back to where it was. A target that stands nowhere stays the adapter's
        own.

        Raises:
            EditError: it is injected already, or the target is not where it was said to be.
        """
        with self.injecting():
            target = self.target
            if parent is None and isinstance(target, Composite):
                self._hold_root(target)
                parent = target.parent if target.parent is not None and not self._is_around(target) else None
            if parent is not None or not isinstance(target, Composite):
                composite, slot = self._place(parent)
                if slot.layer is not target:
                    self.take_as_target(cast("nn.Module", slot.layer))
                self.__dict__["_last_place"] = LastPlace(
                    home_of(composite, slot), slot.name, self.__dict__.get("_place_told", (None, ""))[1]
                )
                edit.swap(composite, slot, cast("nn.Module", self))
        return self

    def inject_at(self, parent: Composite, slot: Slot, path: str = "") -> Self:
        """`inject` at one of several places at which `parent` calls the target.

        `path` is that of the place, where the tree of `parent` stands in a plain module and does not know it.
        """
        self.__dict__["_place_told"] = (slot, path)
        try:
            self.inject(parent)
        finally:
            del self.__dict__["_place_told"]
        return self

    def take_as_target(self, layer: nn.Module) -> None:
        """Accepts another layer where the target stood. Override it for adapters to which that is all the same.

        Raises:
            EditError: always, unless overridden.
        """
        raise EditError(
            f"{type(self).__name__} cannot go in: a {type(layer).__name__} stands where its target, a "
            f"{type(self.target).__name__}, stood. Take that out first, or make another {type(self).__name__} for it."
        )

    def eject(self) -> None:
        """Undoes every edit of `inject`, whole or not at all.

        Raises:
            EditError: it is not injected, or another edit is in the way, which is named.
        """
        with self.ejecting():
            undo_swaps(self._injected or [])

    @contextmanager
    def injecting(self) -> Generator[None]:
        """Records the edits inside as those of this adapter; nested in itself it does nothing."""
        if self.__dict__.get("_busy"):
            yield
            return
        name = type(self).__name__
        if self.is_injected:
            raise EditError(f"{name} is injected already. Eject it first; another place needs another {name}.")
        _ = self.target
        is_part = current_author() is not None
        with recording(author=self) as record, self._working(), borrowing():
            yield
            self._set_injected(list(record.swaps))
            if not is_part:
                note_adapter(record, cast("nn.Module", self), self.target, list(record.swaps))

    @contextmanager
    def ejecting(self) -> Generator[None]:
        """An edit inside that takes back one of `inject` undoes that one; nested in itself it does nothing."""
        if self.__dict__.get("_busy"):
            yield
            return
        if not self.is_injected:
            raise EditError(f"{type(self).__name__} is not injected, so it cannot be ejected.")
        with recording(author=self, cancels=self._injected), self._working(), borrowing():
            yield
            undo_swaps(self._injected or [])
            self._set_injected(None)
            target = self.target
            if isinstance(target, Composite) and self._is_around(target):
                _set_parent(target, None)

    @contextmanager
    def _working(self) -> Generator[None]:
        self.__dict__["_busy"] = True
        try:
            yield
        finally:
            del self.__dict__["_busy"]

    def _place(self, parent: nn.Module | None) -> tuple[Composite, Slot]:
        """Where the target, or what has taken its place, is called."""
        target = self.target
        if parent is None:
            return self._place_before()
        composite = parent if isinstance(parent, Composite) else caller_in(parent, target)
        slot: Slot | None = self.__dict__.get("_place_told", (None, ""))[0]
        if slot is None:
            # An edit that can still be undone may have put another layer there for the target.
            slots = composite.node.slots_of(target) or [
                slot for slot in composite.node.filled() if any(change.old is target for change in slot.swaps)
            ]
            slot = slots[0] if len(slots) == 1 else composite.slot_of(target)
        return composite, slot

    def _place_before(self) -> tuple[Composite, Slot]:
        """Where it was injected the last time."""
        last: LastPlace | None = self.__dict__.get("_last_place")
        if last is None:
            raise EditError(
                f"{type(self).__name__} was not told where its target, a {type(self.target).__name__}, stands. "
                f"Say it with inject(parent), or use {type(self).__name__}.on(model, ...)."
            )
        place = last.find()
        if place is None:
            raise EditError(f"{type(self).__name__} cannot go back to {last.path!r}, where nothing is called any more.")
        return place

    def _hold_root(self, target: Composite) -> None:
        """A target without a parent gets the composite of this adapter that calls it."""
        layer: object = self
        if target.parent is None and isinstance(layer, Composite):
            _set_parent(target, layer.find_parent(target))

    def _is_around(self, target: Composite) -> bool:
        """Whether the target is called by this adapter, which is the root of its tree."""
        around: Composite | None = target
        root: Any = target
        while around is not None:
            root, around = around, around.parent
        return root is self

    def _set_injected(self, swaps: list[Swap] | None) -> None:
        # In a tuple, since what was brought is owned where it was put.
        brought = () if swaps is None else tuple(_brought(cast("nn.Module", self), self.target, swaps))
        on_rollback(self.__dict__.update, {"_injected": self._injected, "_brought": self.brought})
        self.__dict__.update(_injected=swaps, _brought=brought)


def _brought(adapter: nn.Module, target: nn.Module, swaps: list[Swap]) -> Iterator[nn.Module]:
    seen = {id(target)}
    for new, kept, old in [*((swap.new, swap.kept, swap.old) for swap in swaps), (adapter, frozenset[int](), None)]:
        # What was taken out can be put in elsewhere. It may have come by the adapter too, and was given then.
        seen.update(id(layer) for layer in _wired(old, kept))
        for layer in _wired(new, kept | {id(target)}):
            if id(layer) not in seen and id(layer) not in kept:
                seen.add(id(layer))
                yield layer


def _wired(layer: nn.Module | None, stop: frozenset[int] = frozenset()) -> Iterator[nn.Module]:
    """The layer and all that it calls; layers whose id is in `stop` are not entered."""
    if layer is not None:
        yield layer
        inside = wired_sites(layer, stop) if id(layer) not in stop else ()
        yield from (slot.layer for _, slot in inside if slot.layer is not None)


def _set_parent(target: Composite, parent: Composite | None) -> None:
    before = target.node.parent
    target.node.parent = parent
    on_rollback(setattr, target.node, "parent", before)


def _within(around: Callable[[Any], Any], method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    @functools.wraps(method)
    def wrapped(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        with around(self):
            return method(self, *args, **kwargs)

    return wrapped
