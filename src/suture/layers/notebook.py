"""A tree in a notebook: foldable, in one piece of HTML that loads nothing.

Where treescope is installed (`pip install suture[notebook]`) it renders composites instead, as it does all else in a
notebook that uses it: folded until there is room, and inside lists, dictionaries and dataclasses too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from suture.layers.drawing import Drawing, Line

if TYPE_CHECKING:
    from treescope.rendering_parts import RenderableTreePart

    from suture.layers.composite import Composite

_SHOWN_WHOLE = 40
_LEVELS_OPEN = 2
_STYLE = """\
.suture-tree {font-family: monospace; line-height: 1.5}
.suture-tree details > details, .suture-tree details > div {margin-left: 1.2em}
.suture-tree div {padding-left: 1em}
.suture-tree summary {cursor: pointer}
.suture-tree b {font-weight: bold}
.suture-tree .kind {color: #0a7d8c}
.suture-tree .count {color: #2c8a3a; margin-left: 1em}
.suture-tree .note, .suture-tree .hidden {opacity: 0.6}
.suture-tree .added {background: #2c8a3a33}
.suture-tree .removed {background: #c0392b33}
.suture-tree .changed, .suture-tree .marked {background: #c9a50033}"""
_CLASSES = {"+": "added", "-": "removed", "~": "changed", "▸": "marked"}


@dataclass
class Entry:
    """A line with the lines below it."""

    line: Line
    below: list[Entry] = field(default_factory=list["Entry"])


def nested(lines: Sequence[Line]) -> list[Entry]:
    """The lines of a drawing as a tree again."""
    top: list[Entry] = []
    lineage: list[tuple[int, Entry]] = []
    for line in lines:
        entry = Entry(line)
        while lineage and lineage[-1][0] >= len(line.guide):
            lineage.pop()
        (lineage[-1][1].below if lineage else top).append(entry)
        lineage.append((len(line.guide), entry))
    return top


def html(drawing: Drawing) -> str:
    """A drawing as HTML: each layer with layers below is a `details` element.

    >>> drawing = Drawing([Line("Chain"), Line("Linear(2 → 2)", guide="└─ ", name="up", count="6")])
    >>> print(html(drawing).split("</style>")[1])
    <details open><summary><span class="kind">Chain</span></summary>
    <div><b>up</b>: <span class="kind">Linear</span>(2 → 2)<span class="count">6</span></div></details></div>
    """
    body = "\n".join(_html(entry, _levels_open(drawing)) for entry in nested(drawing.lines))
    footer = f"\n<div>{escape(drawing.footer)}</div>" if drawing.footer else ""
    return f'<div class="suture-tree"><style>\n{_STYLE}\n</style>{body}{footer}</div>'


def _levels_open(drawing: Drawing) -> int:
    return len(drawing.lines) if len(drawing.lines) <= _SHOWN_WHOLE else _LEVELS_OPEN


def _html(entry: Entry, levels: int) -> str:
    text, kind = _text(entry.line), _CLASSES.get(entry.line.mark.strip())
    marked = f' class="{kind}"' if kind else ""
    if not entry.below:
        return f"<div{marked}>{text}</div>"
    below = "\n".join(_html(each, levels - 1) for each in entry.below)
    return f"<details{' open' * (levels > 0)}><summary{marked}>{text}</summary>\n{below}</details>"


def _text(line: Line) -> str:
    if line.title.startswith("…"):
        return f'<span class="hidden">{escape(line.title)}</span>'
    kind, bracket, arguments = line.title.partition("(")
    name = f"<b>{escape(line.name)}</b>: " if line.name else ""
    note = f'<span class="note">{escape(line.note)}</span>' if line.note else ""
    count = f'<span class="count">{escape(line.count)}</span>' if line.count else ""
    return f'{name}<span class="kind">{escape(kind)}</span>{escape(bracket + arguments)}{note}{count}'


def notebook_html(model: Composite) -> str:
    """What a notebook shows of a composite."""
    from suture.layers.printing import drawing

    try:
        import treescope
    except ImportError:
        return html(drawing(model))
    return treescope.render_to_html(_Foldable(drawing(model)))


class _Foldable:
    """A drawing for treescope, which would ask a composite for its HTML once more."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing

    def __treescope_repr__(self, path: str | None, subtree_renderer: object) -> RenderableTreePart:
        return treescope_part(self._drawing)


def treescope_part(drawing: Drawing) -> RenderableTreePart:
    """A drawing as treescope renders it."""
    (root,) = nested(drawing.lines)
    return _treescope(root, _levels_open(drawing))


def _treescope(entry: Entry, levels: int) -> RenderableTreePart:
    from treescope import rendering_parts as parts

    line = entry.line
    title = parts.siblings(
        parts.text(f"{line.name}: " if line.name else ""),
        parts.text(line.title),
        parts.comment_color(parts.text(line.note + (f"  {line.count}" if line.count else ""))),
    )
    if not entry.below:
        return title
    below = parts.indented_children([_treescope(each, levels - 1) for each in entry.below])
    return parts.build_custom_foldable_tree_node(
        label=title,
        contents=parts.fold_condition(collapsed=parts.text(" …"), expanded=below),
        path=None,
        expand_state=parts.ExpandState.EXPANDED if levels > 0 else parts.ExpandState.COLLAPSED,
    ).renderable
