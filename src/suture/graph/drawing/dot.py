"""A picture in the language of Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterator

from suture.graph.drawing.picture import Box, Edge, Status, Tag
from suture.graph.drawing.view import View

_INK = {"same": "#3d4451", "added": "#1a7f37", "removed": "#cf222e"}
_FILL = {"same": "#ffffff", "added": "#dafbe1", "removed": "#ffebe9"}
_FRAMES = ("#f6f8fa", "#eef1f4", "#e6eaee")
_ENDS, _CACHE, _WEIGHTS, _QUIET, _TAG = "#ddf4ff", "#fff1c2", "#eef0ff", "#6e7781", "#8250df"
_CHANGED = "#bf8700"
_BREAK = re.compile(r", (?!\d+(?:, \d+)*\))")
"""Not inside of sizes, such as (1, 1)."""
_ROOM = 34
"""How long a line of a caption may be."""


def dot(view: View) -> str:
    """The text of a digraph."""
    return "\n".join(_lines(view)) + "\n"


def _lines(view: View) -> Iterator[str]:
    names = {box: f"n{number}" for number, box in enumerate(view.picture.boxes)}
    yield "digraph {"
    yield '  graph [fontname="Helvetica", rankdir=TB, nodesep=0.3, ranksep=0.35, compound=true];'
    yield '  node [fontname="Helvetica", fontsize=11, margin="0.12,0.06", height=0.3];'
    yield '  edge [fontname="Courier", fontsize=9, arrowsize=0.6];'
    for box in view.picture.root.inside:
        yield from _box(box, view, names, "  ")
    for edge in view.edges:
        yield f"  {names[edge.source]} -> {names[edge.target]} [{_edge(edge)}];"
    yield from _ends(view, names)
    yield "}"


def _ends(view: View, names: dict[Box, str]) -> Iterator[str]:
    """Has inputs that no edge holds stand above the others, and all outputs at the end."""
    held = {box for edge in view.edges for box in (edge.source, edge.target)}
    inputs = [box for box in view.picture.root.inside if box.role == "input"]
    outputs = [names[box] for box in view.picture.root.inside if box.role == "output"]
    first = next((box for box in inputs if box in held), None)
    for box in inputs:
        if box not in held and first is not None:
            yield f"  {names[box]} -> {names[first]} [style=invis];"
    yield f"  {{ rank=sink; {'; '.join(outputs)}; }}"


def _box(box: Box, view: View, names: dict[Box, str], indent: str) -> Iterator[str]:
    inside = view.inside(box)
    if not inside:
        yield f"{indent}{names[box]} [{_node(box, view)}];"
        return
    yield f"{indent}subgraph cluster_{names[box]} {{"
    yield f"{indent}  {_frame(box)}"
    for each in inside:
        yield from _box(each, view, names, f"{indent}  ")
    yield f"{indent}}}"


def _frame(box: Box) -> str:
    fill = _FILL[box.status] if box.status != "same" else _FRAMES[len(box.around) % len(_FRAMES)]
    width = 2 if box.role == "repeat" else 1
    return (
        f'label=<{_title(box)}>; labeljust=l; style="rounded,filled"; fillcolor="{fill}"; '
        f'color="{_ink(box.status, "#afb8c1")}"; penwidth={width}; fontsize=11;'
    )


def _title(box: Box) -> str:
    turns = f' <B><FONT COLOR="{_TAG}">x{box.turns}</FONT></B>' if box.turns > 1 else ""
    caption = f"  {_small(box.said)}" if box.said else ""
    return f"<B>{escaped(box.name)}</B>{turns}{caption}"


def _node(box: Box, view: View) -> str:
    lines = [_title(box)] if box.holds else [_name(box)]
    if not box.holds:
        lines += [_small(line) for line in folded(_caption(box))]
    lines += _tags(view.takes(box), "←") + _tags(view.gives(box), "→")
    sign = box.role == "function" and len(box.name) < 3 and len(lines) == 1
    shape = "cylinder" if box.cache else "ellipse" if sign else "box"
    style = "rounded,filled" if shape == "box" else "filled"
    style += ",dashed" if box.optional or box.status == "removed" else ""
    ends = {"input": _ENDS, "output": _ENDS, "layer": _WEIGHTS if box.weights else _FILL["same"]}
    fill = _CACHE if box.cache else ends.get(box.role, _FILL["same"])
    fill = fill if box.status == "same" else _FILL[box.status]
    changed = box.inside and any(each.status != "same" for each in box.below())
    ink = _ink(box.status, _CHANGED if changed else "#8c959f")
    slim = ', margin="0.04,0.02", width=0.3' if sign else ""
    return (
        f'label=<{"<BR/>".join(lines)}>, shape={shape}, style="{style}", fillcolor="{fill}", '
        f'color="{ink}"{slim}, tooltip={quoted(box.path or box.name)}'
    )


def _name(box: Box) -> str:
    name = escaped(box.name)
    name = f"<I>{name}</I>" if box.role == "function" else f"<B>{name}</B>"
    return f"<S>{name}</S>" if box.status == "removed" else name


def _caption(box: Box) -> str:
    if box.role in ("input", "output"):
        return f"{'optional ' * box.optional}{box.role}{': ' * bool(box.caption)}{box.caption}"
    return box.said


def _tags(tags: list[Tag], arrow: str) -> list[str]:
    return [
        f'<FONT POINT-SIZE="9" COLOR="{_ink(tag.status, _TAG)}">{sign} {escaped(tag.text)}</FONT>'
        for tag in tags
        for sign in ("⇄" if tag.updated else arrow,)
    ]


def _edge(edge: Edge) -> str:
    style = ", style=dashed" if edge.status == "removed" else ""
    width = ", penwidth=1.8" if edge.status == "added" else ""
    ink = _ink(edge.status, _INK["same"])
    return f'label={quoted(edge.label)}, color="{ink}", fontcolor="{_ink(edge.status, _QUIET)}"{style}{width}'


def _ink(status: Status, otherwise: str) -> str:
    return otherwise if status == "same" else _INK[status]


def _small(text: str) -> str:
    return f'<FONT FACE="Courier" POINT-SIZE="9" COLOR="{_QUIET}">{escaped(text)}</FONT>'


def folded(text: str) -> list[str]:
    """A caption in lines that are not too long, broken after commas."""
    lines: list[str] = []
    for part in _BREAK.split(text) if text else ():
        if lines and len(lines[-1]) + len(part) + 2 <= _ROOM:
            lines[-1] += f", {part}"
        else:
            if lines:
                lines[-1] += ","
            lines.append(part)
    return lines


def quoted(text: str) -> str:
    r"""A string of the dot language.

    >>> print(quoted('a "b"'))
    "a \"b\""
    """
    escaped_text = _printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped_text}"'


def escaped(text: str) -> str:
    """Text inside of an HTML-like label of the dot language.

    >>> escaped("</B> & 'x'")
    "&lt;/B&gt; &amp; 'x'"
    """
    text = _printable(text).replace("\n", " ")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else "�" for each in text)
