"""A picture as one HTML page that loads nothing: it can be moved, folded and searched."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from suture.graph.drawing.picture import Box, Tag
from suture.graph.drawing.view import View

_LIBRARY = "dagre-3.1.3.min.js"


def page(view: View) -> str:
    """The text of the page. It is laid out where it is opened, by dagre (MIT), which is in it."""
    # The reference to a file that is not there would be looked for by a browser's own tools.
    library = asset(_LIBRARY).partition("//# sourceMappingURL")[0]
    return Template(asset("viewer.html")).substitute(
        title=escape(view.picture.title),
        style=asset("viewer.css"),
        picture=_in_script(json.dumps(_data(view))),
        library=f"/*\n{asset(_LIBRARY.replace('.min.js', '.LICENSE.txt'))}*/\n{library}",
        seen=asset("seen.js"),
        layout=asset("layout.js"),
        viewer=asset("viewer.js"),
    )


def frame(text: str) -> str:
    """A page inside of a notebook."""
    return (
        f'<iframe srcdoc="{escape(text)}" sandbox="allow-scripts" '
        f'style="width: 100%; height: 720px; border: 1px solid #8884"></iframe>'
    )


@cache
def asset(name: str) -> str:
    """The text of one of the files beside the code."""
    return (files("suture.graph.drawing") / "assets" / name).read_text(encoding="utf-8")


def _data(view: View) -> dict[str, Any]:
    number = {box: index for index, box in enumerate(view.picture.boxes)}
    return {
        "compared": view.picture.compared,
        "boxes": [_box(box, number) for box in number],
        "edges": [[number[edge.source], number[edge.target], edge.label, edge.status] for edge in view.picture.edges],
        "closed": sorted(number[box] for box in view.closed),
    }


def _box(box: Box, number: dict[Box, int]) -> dict[str, Any]:
    plain = {
        name: getattr(box, name) for name in ("name", "role", "path", "status", "optional", "weights", "cache", "turns")
    }
    parent = number.get(box.parent) if box.parent is not None else None
    return plain | {"caption": box.said, "parent": parent, "takes": _tags(box.takes), "gives": _tags(box.gives)}


def _tags(tags: list[Tag]) -> list[dict[str, Any]]:
    return [{"name": tag.name, "part": tag.part, "updated": tag.updated, "status": tag.status} for tag in tags]


def _in_script(text: str) -> str:
    """JSON that no name in it can end the element of, or make one in."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
