"""What was done to a tree, kept as data for its recipe.

The root keeps an entry for every edit, and for every adapter, that stands. An entry holds paths and descriptions and
no layer, so it keeps nothing alive, and it stays when nobody can undo the edit any more. An edit that is undone is as
if it had never been made: its entry goes, and entries made later that name what it had put in name what stood there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from suture.layers.description import Described, Known, Original, Reference, Unknown, describe
from suture.layers.node import Node, Slot, node_of
from suture.layers.ownership import composite_of, home_of, wired_sites
from suture.layers.paths import around_path, join, path_in, path_to, path_within, prefixes, slot_path, slots_of
from suture.layers.recording import Recording

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.swap import Swap


@dataclass
class Entry:
    """One edit, or what one adapter did."""

    operation: str
    """`insert`, `replace`, `remove` or `adapt`."""
    number: int
    swaps: set[int]
    """The numbers of its swaps that stand."""
    place: Reference | Unknown
    """What is replaced, removed or adapted; the composite that is inserted into."""
    leaves: str = ""
    """The path of what stands at the place afterwards."""
    after: dict[int, Reference | None] = field(default_factory=dict[int, "Reference | None"])
    """The slot in front of each insertion, by the number of its swap; None at the start."""
    names: list[str | None] = field(default_factory=list["str | None"])
    """The names that its layers got, one for each swap."""
    what: Described | Reference | Unknown | None = None
    """What was put in, or the adapter."""


class History:
    """The entries of one tree."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._by_swap: dict[int, Entry] = {}
        self._mentions: dict[str, dict[int, tuple[int, Reference]]] = {}
        """Who names a path or something below it: the number of the entry and the reference, by its identity."""

    def __getstate__(self) -> dict[str, Any]:
        # Identities are others in a copy.
        mentions = {path: list(found.values()) for path, found in self._mentions.items()}
        return self.__dict__ | {"_mentions": mentions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        mentions = state["_mentions"].items()
        found = {path: {id(mention[1]): mention for mention in mentioned} for path, mentioned in mentions}
        self.__dict__.update(state | {"_mentions": found})

    @property
    def count(self) -> int:
        """How many swaps have made what the entries say."""
        return len(self._by_swap)

    @property
    def entries(self) -> list[Entry]:
        """In the order in which they were made."""
        return [self._entries[number] for number in sorted(self._entries)]

    def add(self, record: Recording, entry: Entry) -> None:
        for number in entry.swaps:
            record.on_rollback(self._by_swap.pop, number)
            self._by_swap[number] = entry
        self._put(entry)
        record.on_rollback(self._take, entry)

    def undo(self, record: Recording, swap: Swap, before: str, given: str) -> str:
        """Makes everything as if a swap had never been made, which put what is at `given` where `before` was.

        Gives the path of what stands there then, which is not `before` where the edit that put that in is undone too.
        """
        entry = self._by_swap.pop(swap.number, None)
        after: Reference | None = None
        if entry is not None:
            record.on_rollback(self._by_swap.__setitem__, swap.number, entry)
            record.on_rollback(entry.swaps.add, swap.number)
            entry.swaps.discard(swap.number)
            after = entry.after.get(swap.number)
            if entry.leaves == given and isinstance(entry.place, Reference):
                before = entry.place.path
            if not entry.swaps and entry.number in self._entries:
                self._take(entry)
                record.on_rollback(self._put, entry)
        if swap.new is None:
            return before
        mentions = sorted(self._mentions.get(given, {}).values(), key=lambda mention: mention[0])
        keeping = {number for number, each in mentions if each.path == given and self._is_in_what(number, each)}
        for number, reference in mentions:
            later = self._entries.get(number)
            if later is None or number <= swap.number:
                continue
            is_anchor = any(anchor is reference for anchor in later.after.values())
            if swap.hoists:
                # What was put around it stays where it was; what was done to it or in it goes with it.
                if reference.path == given and (is_anchor or number in keeping):
                    self._stands_at(record, later, reference, self._standing(before, swap.number, number))
            elif reference is later.place and (reference.path != given or later.operation == "insert"):
                # What was done inside went out with it.
                self._take(later)
                record.on_rollback(self._put, later)
            elif is_anchor and swap.old is None:
                self._move(record, later, reference, after)
            elif reference.path != given or isinstance(reference, Original):
                gone = Unknown(f"it has a part of what stood at {given!r}, which was taken out again")
                record.set(later, "what", gone)
            elif swap.old is not None and before != given:
                self._stands_at(record, later, reference, self._standing(before, swap.number, number))
        return before

    def _is_in_what(self, number: int, reference: Reference) -> bool:
        entry = self._entries.get(number)
        return entry is not None and any(each is reference for each in _references_in(entry.what))

    def _standing(self, path: str, since: int, until: int) -> str:
        """The path of what stands at a place after the edits made there between two others."""
        made = [
            entry
            for number, reference in self._mentions.get(path, {}).values()
            if since < number < until and (entry := self._entries[number]).place is reference and entry.leaves
        ]
        exact = [entry for entry in made if isinstance(entry.place, Reference) and entry.place.path == path]
        if not exact:
            return path
        first = min(exact, key=lambda entry: entry.number)
        return self._standing(first.leaves, first.number, until)

    def _stands_at(self, record: Recording, later: Entry, reference: Reference, path: str) -> None:
        """What a later entry names is at another path now."""
        if reference is later.place and later.leaves and around_path(path) != around_path(reference.path):
            reason = f"it has its name beside {reference.path!r}, and the edit that brought that to {path!r} was undone"
            record.set(later, "what", Unknown(reason))
        self._redirect(record, later.number, reference, path, None)

    def _redirect(self, record: Recording, number: int, reference: Reference, path: str, which: int | None) -> None:
        self._forget(reference)
        record.on_rollback(self._mention, number, reference)
        record.set(reference, "path", path)
        record.set(reference, "number", which)
        record.on_rollback(self._forget, reference)
        self._mention(number, reference)

    def _move(self, record: Recording, later: Entry, reference: Reference, after: Reference | None) -> None:
        """An insertion behind an undone one is behind what that one was behind."""
        for number, anchor in list(later.after.items()):
            if anchor is not reference:
                continue
            if after is not None:
                self._redirect(record, later.number, reference, after.path, after.number)
            else:
                record.on_rollback(later.after.__setitem__, number, anchor)
                later.after[number] = None

    def move_into(self, record: Recording, inner: Composite, name: str) -> None:
        """Makes this the history of what is owned as `name` at the root, when nothing else of the tree stays."""
        for entry in self.entries:
            self._take(entry)
            record.on_rollback(self._put, entry)
            record.set(entry, "leaves", path_within(name, entry.leaves))
            references = list(_references(entry))
            if not all(prefixes(reference.path)[:1] == [name] for reference in references):
                record.set(entry, "what", Unknown(f"it has a part of what stood around {name!r}"))
            for reference in references:
                record.set(reference, "path", path_within(name, reference.path))
            _add(record, inner, entry)
        for noted in list(_noted.values()):
            if noted.history is self:
                record.set(noted, "before", path_within(name, noted.before))
                record.set(noted, "given", path_within(name, noted.given))
                record.set(noted, "history", inner.node.history)

    def _put(self, entry: Entry) -> None:
        self._entries[entry.number] = entry
        for reference in _references(entry):
            self._mention(entry.number, reference)

    def _take(self, entry: Entry) -> None:
        del self._entries[entry.number]
        for reference in _references(entry):
            self._forget(reference)

    def _mention(self, number: int, reference: Reference) -> None:
        for path in prefixes(reference.path):
            self._mentions.setdefault(path, {})[id(reference)] = (number, reference)

    def _forget(self, reference: Reference) -> None:
        for path in prefixes(reference.path):
            mentioned = self._mentions.get(path, {})
            mentioned.pop(id(reference), None)
            if not mentioned:
                self._mentions.pop(path, None)


@dataclass
class _Noted:
    """Where a swap was made and noted."""

    before: str
    """The path of what it took out."""
    given: str = ""
    """The path of what it put in."""
    history: History | None = None
    """Where it is noted, which is not the history of the tree that it is in when that was taken out meanwhile."""


_noted: weakref.WeakKeyDictionary[Swap, _Noted] = weakref.WeakKeyDictionary()


def notice(swap: Swap) -> None:
    """Remembers where an edit will be made: what it takes out may have no path afterwards."""
    _noted[swap] = _Noted(path_in(swap.home, swap.old_name))


def note(record: Recording, swap: Swap) -> None:
    """Notes an edit that was made. What an adapter does is noted when it has done all of it, as the adapter."""
    _noted[swap].given = _reference(swap.composite, swap.slot).path
    for node in _owners(swap.composite):
        record.set(node, "edits", node.edits + 1)
    if record.author is not None:
        return
    root = _root(swap.composite)
    entry = Entry("replace", swap.number, {swap.number}, _place_of(root, swap), names=[swap.new_name or None])
    if swap.old is None:
        entry.operation, entry.place = "insert", Reference(path_to(swap.composite.node))
        entry.after[swap.number] = _slot_before(swap)
    if swap.new is None:
        entry.operation = "remove"
    elif swap.old is not None:
        entry.leaves = _noted[swap].given
    if swap.new is not None and swap.hoists:
        entry.what = _reference(swap.composite, swap.slot)
    elif swap.new is not None:
        places = {id(hole.slot): (hole.own_name, _reference(hole.composite, hole.slot)) for hole in swap.holes}
        kept = {id(hole.layer): _reference(hole.composite, hole.slot) for hole in swap.holes}
        if any(slot.home is not None and id(slot) not in places for _, slot in wired_sites(swap.new, swap.kept)):
            entry.what = Unknown(f"the {type(swap.new).__name__} was edited before it was put in. Edit it there")
        else:
            entry.what = describe(swap.new, _known(root, swap.new, kept), places)
    _add(record, root, entry, [swap])


def note_adapter(record: Recording, adapter: nn.Module, target: nn.Module, swaps: list[Swap]) -> None:
    """Notes an adapter that has gone in, by the swaps that it made."""
    standing = [swap for swap in swaps if swap.live]
    if not standing or record.author is not adapter:
        return
    root, leaves = _root(standing[-1].composite), ""
    place: Reference | Unknown = Unknown("it does not take the place of its target, which is no composite")
    if own := next((swap for swap in standing if swap.new is adapter), None):
        root = _root(own.composite)
        place, leaves = _place_of(root, own), _noted[own].given
    elif (inner := composite_of(target)) is not None:
        root, place = _root(inner), Reference(path_to(inner.node))
    numbers = {swap.number for swap in standing}
    entry = Entry("adapt", min(numbers), numbers, place, leaves, names=[swap.new_name or None for swap in swaps])
    entry.after = {swap.number: _slot_before(swap) for swap in standing if swap.old is None}
    known = _known(root, adapter, {id(target): place} if isinstance(place, Reference) else {})
    inside = sum(node_of(adapter) in _owners(swap.composite) for swap in standing)
    entry.what = describe(adapter, known, None, inside)
    _add(record, root, entry, standing)


def take_back(record: Recording, swap: Swap) -> None:
    """Has the history of a tree forget a swap that was undone."""
    for node in _owners(swap.composite):
        record.set(node, "edits", node.edits - 1)
    noted = _noted.get(swap)
    if noted is None:
        # It was made in what this is a copy of.
        noted = _Noted(path_in(swap.home, swap.old_name), path_in(swap.home, swap.new_name or swap.old_name))
    current = _root(swap.composite).node.history
    history, before = noted.history or current, noted.before
    if history is not None:
        before = history.undo(record, swap, before, noted.given)
    if current is not None and current is not history:
        # The tree that it was made in was put into another one since.
        around = next((path_to(node) for node in _owners(swap.composite) if node.history is history), "")
        current.undo(record, swap, join(around, before), join(around, noted.given))


def _add(record: Recording, root: Composite, entry: Entry, swaps: Iterable[Swap] = ()) -> None:
    if root.node.history is None:
        record.set(root.node, "history", History())
    history = root.node.history
    if history is not None:
        history.add(record, entry)
        for swap in swaps:
            _noted[swap].history = history


def _root(composite: Composite) -> Composite:
    while (parent := composite.node.parent) is not None:
        composite = parent
    return composite


def _owners(composite: Composite) -> list[Node]:
    """The node of a composite and of those that own it: not of what was only put around it."""
    nodes = [composite.node]
    while (owner := nodes[-1].owner) is not None:
        nodes.append(owner.node)
    return nodes


def _known(root: Composite, new: nn.Module, kept: dict[int, Reference]) -> Known:
    """Where layers stand in the tree without what is in `new`."""

    def known(layer: nn.Module) -> Reference | None:
        node = node_of(layer)
        if node is None or id(layer) in kept:
            return kept.get(id(layer))
        around: nn.Module | None = layer
        while around is not None and around is not new and around is not root:
            inner = node_of(around)
            around = inner.parent if inner is not None else None
        return Reference(path_to(node)) if around is root else None

    return known


def _reference(composite: Composite, slot: Slot) -> Reference:
    return Reference(path_in(home_of(composite, slot), slot.name))


def _place_of(root: Composite, swap: Swap) -> Reference:
    """What a swap took out; numbered where what has its name is called elsewhere too."""
    reference = Reference(_noted[swap].before)
    kept = sum(hole.origin is None for hole in swap.holes) + swap.inherits
    is_leaf = node_of(swap.old) is None
    if is_leaf and not swap.inherits and swap.home.node.uses.get(swap.old_name, 0) > kept:
        sites = [(around, slot) for around, slot in slots_of(root) if slot.layer is not None or slot is swap.slot]
        before = sites[: [slot is swap.slot for _, slot in sites].index(True)]
        reference.number = sum(
            slot.name == swap.old_name and home_of(around, slot) is swap.home for around, slot in before
        )
    return reference


def _slot_before(swap: Swap) -> Reference | None:
    node = swap.composite.node
    position = node.position(swap.slot)
    if not position:
        return None
    slot = node.slots[position - 1]
    home, reference = home_of(swap.composite, slot), Reference(slot_path(swap.composite, slot))
    is_leaf = node_of(slot.layer) is None
    if slot.layer is None or (is_leaf and home.node.uses.get(slot.name, 0) > 1):
        alike = [each for each in node.slots if slot_path(swap.composite, each) == reference.path]
        reference.number = [each is slot for each in alike].index(True) if len(alike) > 1 else None
    return reference


def _references(entry: Entry) -> Iterator[Reference]:
    return _references_in([entry.place, *entry.after.values(), entry.what])


def _references_in(content: Any) -> Iterator[Reference]:
    match content:
        case Reference():
            yield content
        case Described():
            yield from _references_in(content.content)
        case dict():
            yield from _references_in(list(cast("dict[str, Any]", content).values()))
        case list():
            for each in cast("list[Any]", content):
                yield from _references_in(each)
        case _:
            pass
