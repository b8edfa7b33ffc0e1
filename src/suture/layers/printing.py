"""The printed tree: what a person reads instead of a `forward`.

It shows the wiring, in the order of the calls. Numbered siblings that print alike are folded into one line; one that is
like an earlier sibling says so instead of repeating it. At the right stands the number of parameters. A layer that is
owned elsewhere than it is wired says where, and so do weights that occurred before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise

from torch import nn

from suture.layers.branches import Branch, branches, number_shapes, run_name, runs, size_of
from suture.layers.drawing import Drawing, Line
from suture.layers.label import amount

_MARK, _MARK_INSIDE = "▸ ", "▹ "
_LINES_WORTH_HIDING = 2


def tree(
    model: nn.Module, width: int | None = None, depth: int | None = None, marked: Collection[str] | None = None
) -> str:
    """The tree of `model` as text; the model is not called.

    Args:
        model: what to print, a composite or any module.
        width: columns; by default those of the terminal, and 120 where there is none.
        depth: how many levels below the root are shown; by default all.
        marked: paths to mark; only what leads to them is shown then.

    Example:
        >>> from suture import layers as sl
        >>> print(tree(sl.Chain(up=sl.Linear(4, 8), down=sl.Linear(8, 4, bias=False))))
        Chain            72 float32 parameters
        ├─ up: Linear(4 → 8)                40
        └─ down: Linear(8 → 4, bias=False)  32
    """
    return drawing(model, depth, marked).text(width)


def drawing(
    model: nn.Module, depth: int | None = None, marked: Collection[str] | None = None, footer: str = ""
) -> Drawing:
    """What `tree` prints, with a line below it, for whatever shows it: rich in colours, anything else as text."""
    root = branches(model)
    if marked is not None:
        for branch in (root, *root.below()):
            branch.mark = _MARK if branch.path in marked else ""
        hide_unmarked(root)
    if depth is not None:
        _close_below(root, depth)
    return draw(root, gutter=marked is not None, footer=footer)


def draw(root: Branch, gutter: bool, footer: str = "") -> Drawing:
    """The drawing of branches whose marks are set."""
    number_shapes(root, {})
    first = Line(
        root.title + _ellipsis(root), count=_summary(root) if root.column is None else root.column, mark=_mark(root)
    )
    return Drawing([first, *_lines(root, "")], gutter, footer)


def excerpt(model: nn.Module, path: str, width: int | None = None) -> str:
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
        raise LookupError(f"{type(model).__name__} has no layer at {path!r}.")
    lineage[-1].mark = _MARK
    number_shapes(root, {})
    for branch in root.below():
        branch.visible = branch.opened = False
    for around, inner in pairwise(lineage[-3:]):
        siblings = runs(around.children)
        index = next(number for number, run in enumerate(siblings) if inner in run)
        reach = 2 if inner.mark else 0
        for run in siblings[max(index - reach, 0) : index + reach + 1]:
            run[0].visible = True
        around.opened = True
    top = lineage[-3:][0]
    first = Line(top.title, name=top.path, mark=_mark(top))
    lines = [replace(line, count="") for line in [first, *_lines(top, "")]]
    return Drawing(lines, gutter=True).text(width)


# Choosing what is shown


def hide_unmarked(branch: Branch) -> None:
    """Hides what has no mark and leads to none."""
    for child in branch.children:
        hide_unmarked(child)
    branch.opened = any(child.visible for child in branch.children)
    branch.visible = bool(branch.mark) or branch.opened


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
                yield Line(f"… {', '.join(hidden)}", prefix + tee)
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
    branch, name = run[0], run_name(run)
    count = branch.column if branch.column is not None else amount(branch.size) if branch.size else ""
    notes = [*branch.notes, *filter(None, [branch.tie])]
    if len(run) > 1:
        name += f" (x{len(run)})"
        if run[1].same_weights is not None:
            notes.append("tied to one another")
        elif count and branch.column is None:
            count = f"{len(run)} x {count}"
    if like and branch.same_weights is None:
        notes.append(f"like {like}")
    named = name if name != branch.title.partition("(")[0] else ""
    title, mark = branch.title + _ellipsis(branch), _mark(branch, children_shown=not like)
    return Line(title, prefix, named, _note(notes), count, mark)


def _note(notes: list[str]) -> str:
    return f"  ({', '.join(notes)})" if notes else ""


def _mark(branch: Branch, children_shown: bool = True) -> str:
    if branch.mark:
        return branch.mark
    return _MARK_INSIDE if not children_shown and any(each.mark for each in branch.below()) else ""


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
