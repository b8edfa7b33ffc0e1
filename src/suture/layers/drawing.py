"""A tree as lines: laid out to a width, as plain text, or in colours where rich prints it.

A drawing is text wherever text is asked for, `str` and `repr` included. Rich finds the colours by itself, through
`__rich_console__`: `rich.print(model)` and a REPL with `rich.pretty` show them. It knows the width it prints to; as
text the width is that of the terminal, and 120 columns where there is none (a pipe, a notebook, a log).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_MARGIN = 2
_NARROWEST = 40
_WITHOUT_TERMINAL = (120, 24)
_COLOURS = {"guide": "dim", "name": "bold", "class": "cyan", "arguments": "", "note": "italic", "count": "green"}
_COLOURS_OF_MARKS = {"+": "bold green", "-": "bold red", "~": "bold yellow"}


@dataclass
class Line:
    """One line: what leads to it, the name and the title of a layer, a note after them, and a count at the right."""

    title: str
    guide: str = ""
    name: str = ""
    note: str = ""
    count: str = ""
    mark: str = ""

    @property
    def text(self) -> str:
        return f"{self.guide}{self.name}{': ' if self.name else ''}{self.title}"


class Drawing:
    """Lines that are laid out when they are shown. A line that is too long is cut at its end, never broken.

    >>> print(Drawing([Line("Chain"), Line("Linear(2 → 2)", guide="└─ ", name="up", count="6")]))
    Chain
    └─ up: Linear(2 → 2)  6
    """

    def __init__(self, lines: Sequence[Line], gutter: bool = False, footer: str = "") -> None:
        self.lines = list(lines)
        self.gutter = gutter
        """Whether there is a column for marks at the left."""
        self.footer = footer
        """What is said below the tree."""

    def text(self, width: int | None = None) -> str:
        """As plain text, at most `width` columns wide; by default as wide as the terminal."""
        return "\n".join(text for text, _ in self._laid_out(width))

    def _laid_out(self, width: int | None) -> Iterator[tuple[str, list[tuple[int, int, str]]]]:
        """Every line with where its parts are. The counts stand in a column at the right of the longest text."""
        margin = _MARGIN if self.gutter else 0
        available = max(width or shutil.get_terminal_size(_WITHOUT_TERMINAL).columns, _NARROWEST) - margin
        wanted = max(len(line.text) + len(line.note) + _room_for_count(line) for line in self.lines)
        for line in self.lines:
            yield _lay_out(line, margin, min(available, wanted))
        if self.footer:
            yield self.footer, []

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from suture.layers.notebook import html

        return html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for plain, spans in self._laid_out(options.max_width):
            text = Text(plain, no_wrap=True, overflow="ignore", end="\n")
            for start, end, style in spans:
                text.stylize(style, start, end)
            yield text


def _lay_out(line: Line, margin: int, edge: int) -> tuple[str, list[tuple[int, int, str]]]:
    room = edge - _room_for_count(line)
    # A note says what cannot be seen otherwise, so the text before it is cut first.
    text = _cut(line.text, max(room - len(line.note), room // 2))
    noted = _cut(text + line.note, room)
    plain = line.mark.ljust(margin) + noted + line.count.rjust(edge - len(noted))
    lengths = {
        "mark": margin,
        "guide": len(line.guide),
        "name": len(line.name) + 2 * bool(line.name),
        "class": len(line.title.partition("(")[0]),
    }
    ends, end = list[tuple[str, int]](), 0
    for part, length in lengths.items():
        end += length
        ends.append((part, min(end, margin + len(text))))
    ends += [("arguments", margin + len(text)), ("note", margin + len(noted)), ("count", len(plain))]
    colours = _COLOURS | {"mark": _COLOURS_OF_MARKS.get(line.mark.strip(), "bold magenta")}
    if line.title.startswith("…"):
        colours["class"] = colours["arguments"] = "dim"
    starts = [0, *(end for _, end in ends)]
    spans = [(start, end, colours[part]) for start, (part, end) in zip(starts, ends, strict=False) if colours[part]]
    return plain.rstrip(), [span for span in spans if span[0] < span[1]]


def _room_for_count(line: Line) -> int:
    return len(line.count) + 2 if line.count else 0


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
