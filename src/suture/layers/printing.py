"""The printed tree: what a person reads instead of a `forward`.

It shows the wiring, in the order of the calls. Numbered siblings that print alike are folded into one line; one that is
like an earlier sibling says so instead of repeating it. At the right stands the number of parameters. A layer that is
owned elsewhere than it is wired says where, and so do weights that occurred before.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from suture.layers.branches import Branch, branches, number_shapes, run_name, runs, size_of
from suture.layers.label import amount

if TYPE_CHECKING:
    from suture.layers.composite import Composite

_MARK, _MARK_INSIDE = "▸ ", "▹ "
_LINES_WORTH_HIDING = 2
_NARROWEST = 40


@dataclass
class Line:
    """One printed line: text with a note at the left, a count at the right."""

    text: str
    note: str = ""
    count: str = ""
    mark: str = ""


def tree(
    model: Composite, width: int | None = None, depth: int | None = None, marked: Collection[str] | None = None
) -> str:
    """The tree of `model` as text; the model is not called.

    Args:
        model: what to print.
        width: columns; by default those of the terminal, or 80.
        depth: how many levels below the root are shown; by default all.
        marked: paths to mark; only what leads to them is shown then.

    Example:
        >>> from suture import layers as sl
        >>> print(tree(sl.Chain(up=sl.Linear(4, 8), down=sl.Linear(8, 4, bias=False))))
        Chain            72 float32 parameters
        ├─ up: Linear(4 → 8)                40
        └─ down: Linear(8 → 4, bias=False)  32
    """
    root = branches(model)
    if marked is not None:
        _show_marked(root, set(marked))
    if depth is not None:
        _close_below(root, depth)
    number_shapes(root, {})
    lines = [Line(root.title + _ellipsis(root), count=_summary(root)), *_lines(root, "")]
    return _layout(lines, width, gutter=marked is not None)


def excerpt(model: Composite, path: str, width: int | None = None) -> str:
    """The part of the tree around the layer at `path`, with that layer marked: at most twelve lines.

    Raises:
        LookupError: no layer is wired at `path`.

    Example:
        >>> from suture import layers as sl
        >>> print(excerpt(sl.Chain(body=sl.Chain(sl.Linear(4, 8), sl.ReLU(), sl.Linear(8, 4))), "body.ReLU"))
          Chain
          └─ body: Chain
             ├─ Linear(4 → 8)
        ▸    ├─ ReLU
             └─ Linear_2: Linear(8 → 4)
    """
    root = branches(model)
    lineage = root.lineage_of(path)
    if not lineage:
        raise LookupError(f"{type(model).__name__} wires no layer at {path!r}.")
    lineage[-1].marked = True
    number_shapes(root, {})
    for branch in root.below():
        branch.visible = branch.opened = False
    for around, inner in pairwise(lineage[-3:]):
        siblings = runs(around.children)
        index = next(number for number, run in enumerate(siblings) if inner in run)
        reach = 2 if inner.marked else 0
        for run in siblings[max(index - reach, 0) : index + reach + 1]:
            run[0].visible = True
        around.opened = True
    top = lineage[-3:][0]
    title = top.title if top is root else f"{top.path}: {top.title}"
    lines = [replace(line, count="") for line in [Line(title, mark=_mark(top)), *_lines(top, "")]]
    return _layout(lines, width, gutter=True)


# Choosing what is shown


def _show_marked(branch: Branch, marked: set[str]) -> None:
    """Marks the branches at these paths and hides what leads to none."""
    for child in branch.children:
        _show_marked(child, marked)
    branch.marked = branch.path in marked
    branch.opened = any(child.visible for child in branch.children)
    branch.visible = branch.marked or branch.opened


def _close_below(branch: Branch, depth: int) -> None:
    branch.opened = branch.opened and depth > 0
    for child in branch.children:
        _close_below(child, depth - 1)


# Writing


def _lines(branch: Branch, prefix: str, twin: Branch | None = None, twin_name: str = "") -> Iterator[Line]:
    """The lines below `branch`. What is just as in `twin`, which stands further up, is not repeated."""
    if not (branch.opened and branch.children):
        return
    twins = {child.name: (child, f"{twin_name}.{child.name}") for child in (twin.children if twin else ())}
    earlier: dict[object, tuple[Branch, str]] = {}
    hidden: list[str] = []
    siblings = runs(branch.children)
    for run, following in zip(siblings, [*siblings[1:], None], strict=True):
        first = run[0]
        tee, bar = ("├─ ", "│  ") if following else ("└─ ", "   ")
        if not first.visible:
            hidden.append(run_name(run))
            if following is None or following[0].visible:
                yield Line(f"{prefix}{tee}… {', '.join(hidden)}")
                hidden.clear()
            continue
        like = earlier.get(first.shape) or twins.get(first.name)
        if like is not None and like[0].shape == first.shape and _is_worth_hiding(first):
            yield _line(run, prefix + tee, like[1])
        else:
            yield _line(run, prefix + tee)
            model, model_name = earlier.get(first.title) or twins.get(first.name) or (None, "")
            yield from _lines(first, prefix + bar, model, model_name)
        earlier.setdefault(first.shape, (first, first.name))
        earlier.setdefault(first.title, (first, first.name))


def _is_worth_hiding(branch: Branch) -> bool:
    return branch.opened and sum(1 for _ in branch.below()) > _LINES_WORTH_HIDING


def _line(run: list[Branch], prefix: str, like: str = "") -> Line:
    """The line of a run; where it is `like` another branch its children are not printed."""
    branch, name, count = run[0], run_name(run), amount(run[0].size) if run[0].size else ""
    notes = list(branch.notes)
    if len(run) > 1:
        name += f" (x{len(run)})"
        if run[1].same_weights is not None:
            notes.append("tied to one another")
        elif count:
            count = f"{len(run)} x {count}"
    if like and branch.same_weights is None:
        notes.append(f"like {like}")
    title = branch.title if name == branch.title.partition("(")[0] else f"{name}: {branch.title}"
    text, note = prefix + title + _ellipsis(branch), f"  ({', '.join(notes)})" if notes else ""
    return Line(text, note, count, _mark(branch, children_shown=not like))


def _mark(branch: Branch, children_shown: bool = True) -> str:
    if branch.marked:
        return _MARK
    return _MARK_INSIDE if not children_shown and any(each.marked for each in branch.below()) else ""


def _ellipsis(branch: Branch) -> str:
    return " …" if branch.children and not branch.opened else ""


def _summary(root: Branch) -> str:
    """The number of all parameters, their dtype where they have one, and how many are trained where not all are."""
    parameters = root.parameters
    if not parameters:
        return ""
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters.values()}
    text = f"{amount(root.size)} {f'{dtypes.pop()} ' if len(dtypes) == 1 else ''}parameters"
    trainable = {key: parameter for key, parameter in parameters.items() if parameter.requires_grad}
    return text if len(trainable) == len(parameters) else f"{text}, {amount(size_of(trainable))} trainable"


def _layout(lines: list[Line], width: int | None, gutter: bool) -> str:
    """Sets the counts in a column at the right of the longest text, and cuts what is too long for the width."""
    margin = len(_MARK) if gutter else 0
    available = max(width or shutil.get_terminal_size((80, 24)).columns, _NARROWEST) - margin
    wanted = max(len(line.text) + len(line.note) + _room_for_count(line) for line in lines)
    return "\n".join(_laid_out(line, margin, min(available, wanted)).rstrip() for line in lines)


def _laid_out(line: Line, margin: int, edge: int) -> str:
    room = edge - _room_for_count(line)
    # A note says what cannot be seen otherwise, so the text before it is cut first.
    text = _cut(line.text, max(room - len(line.note), room // 2))
    text = _cut(text + line.note, room)
    return line.mark.ljust(margin) + text + line.count.rjust(edge - len(text))


def _room_for_count(line: Line) -> int:
    return len(line.count) + 2 if line.count else 0


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
