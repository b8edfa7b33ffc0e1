"""What a notebook shows: foldable, loading nothing, through treescope where that is installed."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
from torch import nn

from suture import check, diff, select
from suture import layers as sl
from suture.layers.notebook import html, nested
from suture.layers.printing import drawing


@pytest.fixture
def without_treescope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "treescope", None)


def model() -> sl.Chain:
    return sl.Chain(
        embedding=sl.Embedding(10, 4),
        blocks=sl.Stack(*(sl.Residual(norm=sl.RMSNorm(4, eps=1e-6), up=sl.Linear(4, 4)) for _ in range(3))),
        head=sl.Linear(4, 10, bias=False),
    )


class Outline(HTMLParser):
    """The text of each line, by how many `details` elements it is in; and what would be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []
        self.open: list[bool] = []
        self.tags: set[str] = set()
        self.loaded: list[str] = []
        self._depth = 0
        self._skipping = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        self._skipping = tag == "style"
        if tag == "details":
            self._depth += 1
            self.open.append("open" in dict(attrs))
        if tag in ("summary", "div"):
            self.lines.append((self._depth, ""))

    def handle_endtag(self, tag: str) -> None:
        self._skipping = self._skipping and tag != "style"
        self._depth -= tag == "details"

    def handle_data(self, data: str) -> None:
        if not self._skipping and self.lines:
            depth, text = self.lines[-1]
            self.lines[-1] = (depth, text + data.strip("\n"))


@pytest.mark.usefixtures("without_treescope")
class TestHtml:
    def test_each_layer_with_layers_below_can_be_folded(self) -> None:
        outline = Outline(model()._repr_html_())  # type: ignore[reportPrivateUsage]
        assert outline.lines[1:] == [
            (1, "Chain152 float32 parameters"),
            (1, "embedding: Embedding(10, 4)40"),
            (2, "blocks: Stack72"),
            (3, "0..2 (x3): Residual3 x 24"),
            (3, "norm: RMSNorm(4, eps=1e-06)4"),
            (3, "up: Linear(4 → 4)20"),
            (1, "head: Linear(4 → 10, bias=False)40"),
        ]

    def test_it_has_all_that_it_needs(self) -> None:
        outline = Outline(model()._repr_html_())  # type: ignore[reportPrivateUsage]
        assert outline.tags == {"div", "style", "details", "summary", "span", "b"}
        assert outline.loaded == []

    def test_what_is_long_is_open_at_the_top_only(self) -> None:
        layers = [sl.Linear(width, width) for width in range(1, 50)]
        assert Outline(html(drawing(sl.Chain(inner=sl.Chain(sl.Chain(*layers)))))).open == [True, True, False]
        assert Outline(html(drawing(sl.Chain(inner=sl.Chain(sl.Chain(*layers[:5])))))).open == [True, True, True]

    def test_text_is_escaped(self) -> None:
        class Wordy(nn.Module):
            def extra_repr(self) -> str:
                return "<script>alert('x')</script> & more"

        shown = html(drawing(sl.Chain(Wordy())))
        assert "&lt;script&gt;" in shown
        assert "script" not in Outline(shown).tags

    def test_marks_are_backgrounds(self) -> None:
        before, after = model(), model()
        select(after, "blocks.1.up").replace(sl.Identity())
        del after["head"]
        after.append(sl.SiLU())
        shown = diff(before, after)._repr_html_()  # type: ignore[reportPrivateUsage]
        found = re.findall(r'class="(added|removed|changed)">(?:<b>)?(?:<span class="kind">)?(\w+)', shown)
        assert found == [("changed", "up"), ("removed", "head"), ("added", "SiLU")]

    def test_what_check_found(self) -> None:
        assert "(3, 2) float32" in check(sl.Chain(sl.Linear(4, 2)), (3, 4))._repr_html_()  # type: ignore[reportPrivateUsage]

    def test_lines_nest_as_they_are_drawn(self) -> None:
        (root,) = nested(drawing(model()).lines)
        assert [entry.line.name for entry in root.below] == ["embedding", "blocks", "head"]
        assert [entry.line.name for entry in root.below[1].below[0].below] == ["norm", "up"]


class TestTreescope:
    @pytest.fixture(autouse=True)
    def treescope(self) -> Any:
        return pytest.importorskip("treescope")

    def test_a_notebook_gets_its_html(self, treescope: Any) -> None:
        shown: str = model()._repr_html_()  # type: ignore[reportPrivateUsage]
        assert "suture-tree" not in shown
        assert "treescope" in shown

    def test_it_shows_the_tree(self, treescope: Any) -> None:
        shown: str = treescope.render_to_text(model())
        assert "blocks: Stack  72" in shown
        assert "0..2 (x3): Residual  3 x 24" in shown
        assert "up: Linear(4 → 4)  20" in shown

    def test_in_what_else_it_renders(self, treescope: Any) -> None:
        assert "Chain  152 float32 parameters" in treescope.render_to_text([model(), 3])
