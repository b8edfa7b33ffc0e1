"""What an edit changed: two trees beside each other, by the paths of their layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import SequenceMatcher

from torch import nn

from suture.layers import printing
from suture.layers.branches import Branch, branches
from suture.layers.drawing import Drawing, Line
from suture.layers.notebook import html

_ADDED, _REMOVED, _CHANGED = "+ ", "- ", "~ "


def diff(before: nn.Module, after: nn.Module) -> Diff:
    """What is different in the tree `after`; print it, or look at its `added`, `removed` and `changed` paths.

    Args:
        before: a composite or any module, such as a copy that was made before an edit.
        after: another.

    >>> import copy
    >>> from suture import layers as sl
    >>> model = sl.Chain(up=sl.Linear(2, 4), act=sl.SiLU(), down=sl.Linear(4, 2))
    >>> before = copy.deepcopy(model)
    >>> edit = model.replace(model.up, sl.Sum(model.up, sl.Linear(2, 4, bias=False)))
    >>> del model["act"]
    >>> print(diff(before, model))
      Chain                     2 added, 1 removed
    + ├─ up+Sum: Sum                            20
      │  ├─ … up
    + │  └─ Linear_2: Linear(2 → 4, bias=False)  8
    - ├─ act: SiLU
      └─ … down
    """
    return Diff(before, after)


class Diff:
    """The difference between two trees. It is true when there is one; printed, it shows the second tree.

    Lines with `+` were added and lines with `-` removed; `~` says that a layer is another one, was configured or
    trained otherwise, or moved, and how it was before. What is equal is folded.

    Values of weights are not compared. Layers are the same when their paths are, whatever was put around them.
    """

    def __init__(self, before: nn.Module, after: nn.Module) -> None:
        one, other = branches(before), branches(after)
        old, new = _by_path(one), _by_path(other)
        self.added = tuple(path for path in new if path not in old)
        """The paths of what only the second tree has, in the order of the calls."""
        self.removed = tuple(path for path in old if path not in new)
        """The paths of what only the first tree has."""
        changes = _changes(one, other, old, new)
        self.changed = tuple(changes)
        """The paths of what both have, but not the same or not at the same place; the root is ''."""
        for path in self.added:
            new[path].mark = _ADDED
        for path, notes in changes.items():
            new[path].mark = _CHANGED
            new[path].notes += notes
        _put_back(one.children, other, new, _parents(other))
        printing.hide_unmarked(other)
        other.column = self._summary()
        self._drawing = printing.draw(other, gutter=True) if self else Drawing([Line("No difference.")])

    def _summary(self) -> str:
        counts = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return ", ".join(f"{len(paths)} {what}" for what, paths in counts.items() if paths)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        return str(self._drawing)

    __repr__ = __str__

    def __rich__(self) -> Drawing:
        return self._drawing

    def _repr_html_(self) -> str:
        return html(self._drawing)


# What is different


def _by_path(root: Branch) -> dict[str, Branch]:
    """The branches by their paths; of a layer that is called at several places the first."""
    found: dict[str, Branch] = {}
    for branch in (root, *root.below()):
        found.setdefault(branch.path, branch)
    return found


def _changes(
    before: Branch, after: Branch, old: Mapping[str, Branch], new: Mapping[str, Branch]
) -> dict[str, list[str]]:
    """What is to be said of each branch that both trees have and that is not the same, in the order of the calls."""
    moved = set(_moves(_families(before, new), _families(after, old)))
    changes = {
        path: [*_differences(old[path], branch), *(["moved"] if path in moved else [])]
        for path, branch in new.items()
        if path in old
    }
    return {path: notes for path, notes in changes.items() if notes}


def _differences(before: Branch, after: Branch) -> Iterator[str]:
    if before.title != after.title:
        yield f"was {before.title}"
    one, other = _own_parameters(before), _own_parameters(after)
    for what in range(3):
        was = [each[what] for each in one]
        if before.title == after.title and was != [each[what] for each in other]:
            yield f"was {', '.join(dict.fromkeys(was)) or 'without parameters'}"
    tied, was_tied = after.same_weights, before.same_weights
    if (was_tied and was_tied.path) != (tied and tied.path):
        yield f"was tied to {was_tied.path}" if was_tied else "was not tied"


def _own_parameters(branch: Branch) -> list[tuple[str, str, str]]:
    """Of the parameters that are of no layer below: their shapes, their dtypes, and whether they are trained."""
    below = {key for child in branch.children for key in child.parameters}
    return [
        (str(tuple(each.shape)), str(each.dtype).removeprefix("torch."), "trained" if each.requires_grad else "frozen")
        for key, each in branch.parameters.items()
        if key not in below
    ]


def _families(root: Branch, common: Collection[str]) -> dict[str, list[str]]:
    """Which paths stand in which, leaving out what the other tree does not have."""
    families: dict[str, list[str]] = {}
    seen: set[str] = set()

    def collect(branch: Branch, parent: str) -> None:
        for child in branch.children:
            known = child.path in common
            if known and child.path not in seen:
                seen.add(child.path)
                families.setdefault(parent, []).append(child.path)
            collect(child, child.path if known else parent)

    collect(root, root.path)
    return families


def _moves(before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> Iterator[str]:
    """The paths that stand in another order than before, as few as explain it."""
    for parent, children in after.items():
        blocks = SequenceMatcher(None, before.get(parent, []), children, autojunk=False).get_matching_blocks()
        in_place = {child for block in blocks for child in children[block.b : block.b + block.size]}
        yield from (child for child in children if child not in in_place)


# How it is shown


def _parents(root: Branch) -> dict[int, Branch]:
    return {id(child): branch for branch in (root, *root.below()) for child in branch.children}


def _put_back(old: list[Branch], around: Branch, new: Mapping[str, Branch], parents: Mapping[int, Branch]) -> None:
    """Puts what was removed where it stood: after the branch that stood before it, where that still is."""
    previous: Branch | None = None
    for branch in old:
        below, standing = branch.children, new.get(branch.path)
        if standing is None:
            position = around.children.index(previous) + 1 if previous is not None else 0
            branch.mark, branch.children = _REMOVED, []
            around.children.insert(position, branch)
            previous = branch
        else:
            inside = standing
            while inside is not None and parents.get(id(inside)) is not around:
                inside = parents.get(id(inside))
            previous = inside or previous
        _put_back(below, standing or branch, new, parents)
