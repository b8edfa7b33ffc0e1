"""The programs in the pages of `docs` run, each page from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert programs
    names: dict[str, Any] = {}
    for program in programs:
        exec(program, names)
