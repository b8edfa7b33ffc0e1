"""Pictures as svg and png, made by the program `dot` of Graphviz."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_TIME_LIMIT = 300


def render(text: str, format: str) -> bytes:  # noqa: A002 (what it is called)
    """What `dot` makes of `text`.

    Raises:
        FileNotFoundError: `dot` is not installed; the message says how to install it.
        RuntimeError: `dot` failed.
    """
    program = shutil.which("dot")
    if program is None:
        raise FileNotFoundError(
            f"A picture as {format} is made by the program `dot` of Graphviz, which is not installed here. Install it "
            f"(apt install graphviz, brew install graphviz, or from https://graphviz.org/download), or plot to a file "
            f"that ends in .html or .dot, which need nothing."
        )
    made = subprocess.run([program, f"-T{format}"], input=text.encode(), capture_output=True, timeout=_TIME_LIMIT)
    if made.returncode:
        raise RuntimeError(f"`{Path(program).name}` of Graphviz failed: {made.stderr.decode(errors='replace').strip()}")
    return made.stdout
