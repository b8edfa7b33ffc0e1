"""Text that arrives in pieces, written as it arrives without breaking words at the edge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def write_words(console: Console, pieces: Iterable[str], margin: int = 0) -> None:
    """Writes pieces of text as they come, wrapped to the console and indented by `margin`.

    >>> from rich.console import Console
    >>> write_words(Console(width=14), ["one tw", "o three", " four"], margin=2)
      one two
      three four
    """
    column, word = 0, ""

    def write(word: str) -> None:
        nonlocal column
        text = word if column else word.lstrip()
        if not text:
            return
        if column and column + len(text) > console.width:
            console.print()
            column, text = 0, text.lstrip()
        if not column:
            text = " " * margin + text
        console.print(text, end="", highlight=False, markup=False, soft_wrap=True)
        column += len(text)

    for character in (character for piece in pieces for character in piece):
        if character.isspace():
            write(word)
            word = " "
            if character == "\n" and column:
                console.print()
                column = 0
        else:
            word += character
    write(word)
    if column:
        console.print()
