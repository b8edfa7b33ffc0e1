"""What every public layer says of itself."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from suture import layers as sl

PUBLIC = [str(name) for name in vars(sl)["__all__"]]
DOCUMENTED = [name for name in PUBLIC if inspect.isclass(getattr(sl, name)) or inspect.isroutine(getattr(sl, name))]


def test_everything_but_constants_is_documented() -> None:
    assert set(PUBLIC) - set(DOCUMENTED) == {"REQUIRED"}
    assert len(set(PUBLIC)) == len(PUBLIC)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_it_has_a_line_of_idea_and_an_example_of_its_own(name: str) -> None:
    public: Any = getattr(sl, name)
    # Not what is inherited: torch's docstrings describe torch's layers.
    text: str | None = vars(public)["__doc__"] if inspect.isclass(public) else public.__doc__
    assert text, f"{name} says nothing"
    idea, *_ = text.splitlines()
    assert re.search(r"[.:,]$", idea.strip()), f"the first line of {name} is not a sentence: {idea}"
    example = "".join(re.findall(r"^ *(?:>>>|\.\.\.) .*$", text, re.MULTILINE))
    assert re.search(rf"\b{name}\b", example), f"{name} has no example that uses it"
