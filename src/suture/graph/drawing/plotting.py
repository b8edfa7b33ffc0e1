"""`plot`: a graph, or a tree, as a picture in a file or in a notebook."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from suture.graph.drawing.comparing import compare
from suture.graph.drawing.dot import dot
from suture.graph.drawing.graphviz import render
from suture.graph.drawing.page import frame, page
from suture.graph.drawing.picture import Picture
from suture.graph.drawing.repeats import fold_repeats
from suture.graph.drawing.sketching import sketch
from suture.graph.drawing.view import View, view
from suture.graph.functional_cache import CachedGraph
from suture.graph.tracing import as_graph

_FORMATS = (".svg", ".png", ".html", ".dot")


@dataclass(frozen=True)
class Plot:
    """A picture of a graph. A notebook shows it."""

    view: View
    """What is drawn."""
    path: Path | None = None
    """The file in which it is, if it was put in one."""

    @property
    def html(self) -> str:
        """One page that can be moved, folded and searched, and loads nothing."""
        return page(self.view)

    @property
    def dot(self) -> str:
        """The language of Graphviz."""
        return dot(self.view)

    def svg(self) -> str:
        """A still picture. Raises `FileNotFoundError` without Graphviz."""
        return render(self.dot, "svg").decode()

    def save(self, path: str | os.PathLike[str]) -> Plot:
        """Writes it to a file, in the format that the name of the file ends in: .svg, .png, .html or .dot.

        Raises:
            ValueError: it ends in none of these.
            FileNotFoundError: svg and png need Graphviz; the message says how to install it.
        """
        file = Path(path)
        kind = file.suffix.lower()
        if kind not in _FORMATS:
            raise ValueError(
                f"A picture is written in the format that the name of the file ends in, one of {', '.join(_FORMATS)}. "
                f"Received: {str(file)!r}."
            )
        if kind in (".svg", ".png"):
            file.write_bytes(render(self.dot, kind[1:]))
        else:
            file.write_text(self.html if kind == ".html" else self.dot, encoding="utf-8")
        return Plot(self.view, file)

    def _repr_html_(self) -> str:
        return frame(self.html)

    def __repr__(self) -> str:
        picture = self.view.picture
        where = f" in {str(self.path)!r}" if self.path is not None else ""
        return f"Plot({picture.title}: {len(picture.boxes)} boxes, {len(picture.edges)} edges{where})"


def plot(
    model: nn.Module,
    path: str | os.PathLike[str] | None = None,
    *,
    inputs: Any = None,
    compared_with: nn.Module | None = None,
) -> Plot:
    """Draws a graph: every call, what goes from one to the next, and in what it is.

    Composites are frames around what they call. Blocks that repeat are drawn once, with how often (`x12`). Edges tell
    the shape of what goes along them: sizes that depend on the call by the name of the dimension, or B, T, ... by its
    position in the inputs. What layers take from the context (masks, positions, a cache) is a tag at each of them and
    at its origin. A cache that is advanced in place is an input and an output.

    In a `.html` page, frames and repeats are opened and closed by a click, and layers are found by their path. It is
    one file that loads nothing. Pictures as `.svg` and `.png` are made by Graphviz.

    Args:
        model: A graph, with a cache or without, or a tree, which is traced.
        path: The file to write, by its ending .svg, .png, .html or .dot. None: none; a notebook shows the result.
        inputs: What a tree is called with, where it does not know: `Input`s, as of `trace`.
        compared_with: The graph or tree as it was before: what was added is drawn in green, what was removed in red.

    Returns:
        The picture: what a notebook shows, `html`, `dot`, `svg()` and `save(path)`.

    Raises:
        TypeError: the inputs of a tree are not known and not given.
        ValueError: the name of the file does not end in one of these formats.
        FileNotFoundError: svg and png need Graphviz; the message says how to install it.

    Example:
        >>> from suture import layers as sl
        >>> from suture.graph import Input
        >>> model = sl.Residual(norm=sl.LayerNorm(4), up=sl.Linear(4, 4))
        >>> plot(model, inputs=Input("x", shape=(None, 4)))
        Plot(Residual: 6 boxes, 5 edges)
    """
    picture = _sketch(model, inputs)
    if compared_with is not None:
        compare(picture, _sketch(compared_with, inputs))
    fold_repeats(picture)
    made = Plot(view(picture))
    return made if path is None else made.save(path)


def _sketch(model: nn.Module, inputs: Any) -> Picture:
    if isinstance(model, CachedGraph):
        return sketch(model.graph, cache=(model.input, model.output))
    return sketch(as_graph(model, inputs))
