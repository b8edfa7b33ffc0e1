"""Pictures as a person uses them, in a real browser. `make test-browser` runs these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suture import select
from suture.graph import plot
from tests.graph.chromium import Page, browser
from tests.graph.drawn import decoder, traced
from tests.graph.test_drawing_formats import HOSTILE, named

pytestmark = pytest.mark.browser

MIDDLE = (650.0, 450.0)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
        assert opened.errors == []


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pictures") / "decoder.html"
    plot(traced(decoder(12)), file)
    return file


@pytest.fixture
def opened(page: Page, picture: Path) -> Page:
    page.open(picture)
    return page


def count(page: Page, selector: str) -> int:
    return page.evaluate(f"document.querySelectorAll({selector!r}).length")


def text(page: Page, selector: str) -> str:
    return page.evaluate(f"document.querySelector({selector!r}).textContent")


def transform(page: Page) -> str:
    return page.evaluate("document.getElementById('scene').getAttribute('transform')")


def blocks(page: Page) -> int:
    """How many of the twelve blocks are drawn."""
    return page.evaluate(
        "[...document.querySelectorAll('.box')].filter((box) => /^blocks\\.\\d+$/.test(box.dataset.path)"
        " && !box.classList.contains('repeat')).length"
    )


def test_nothing_is_loaded_from_outside(opened: Page, picture: Path) -> None:
    assert set(opened.requests) <= {picture.as_uri(), "about:blank"}
    assert opened.evaluate("performance.getEntriesByType('resource').length") == 0


def test_repeated_blocks_are_drawn_once(opened: Page) -> None:
    assert count(opened, '[data-path$=".query"]') == 1
    assert text(opened, ".title .turns").startswith("x12")


def test_a_repeat_unfolds_and_folds(opened: Page) -> None:
    opened.click(".title .turns")
    assert blocks(opened) == 12
    opened.click(".title .turns")
    assert blocks(opened) == 0
    assert count(opened, '[data-path$=".query"]') == 1


def test_a_frame_closes_and_opens(opened: Page) -> None:
    opened.click('[data-path="blocks.0.attention"] .handle')
    assert count(opened, '[data-path="blocks.0.attention"].closed') == 1
    assert count(opened, '[data-path$=".query"]') == 0
    assert count(opened, '[data-path="blocks.0.attention"] .tag[data-tag="mask"]') == 1
    opened.click('[data-path="blocks.0.attention"] .name')
    assert count(opened, '[data-path$=".query"]') == 1


def test_every_box_is_where_its_frame_is(opened: Page) -> None:
    outside = """
    (() => {
      const picture = JSON.parse(document.getElementById("picture").textContent), found = [];
      const drawn = new Map([...document.querySelectorAll(".box[data-id]")].map((box) =>
        [Number(box.dataset.id), box.querySelector("rect").getBoundingClientRect()]));
      for (const [id, at] of drawn) {
        let parent = picture.boxes[id].parent;
        while (parent !== null && !drawn.has(parent)) parent = picture.boxes[parent].parent;
        if (parent === null) continue;
        const around = drawn.get(parent);
        if (at.left < around.left || at.right > around.right || at.top < around.top || at.bottom > around.bottom)
          found.push(picture.boxes[id].path || picture.boxes[id].name);
      }
      return found;
    })()"""
    assert opened.evaluate(outside) == []
    opened.click(".title .turns")
    assert opened.evaluate(outside) == []


def test_boxes_do_not_lie_on_each_other(opened: Page) -> None:
    overlaps = """
    (() => {
      const boxes = [...document.querySelectorAll(".box[data-id]:not(.frame)")], found = [];
      const at = boxes.map((box) => box.querySelector("rect").getBoundingClientRect());
      for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++)
        if (Math.max(at[i].left, at[j].left) < Math.min(at[i].right, at[j].right)
          && Math.max(at[i].top, at[j].top) < Math.min(at[i].bottom, at[j].bottom))
          found.push([boxes[i].textContent, boxes[j].textContent]);
      return found;
    })()"""
    assert opened.evaluate(overlaps) == []


def test_a_search_finds_what_is_folded_and_goes_there(opened: Page) -> None:
    opened.type("#search", "query")
    assert text(opened, "#found") == "12 found"
    assert count(opened, ".box.hit") == 1
    for _ in range(8):
        opened.press_enter()
    assert text(opened, "#found") == "8 of 12"
    assert text(opened, "#details").startswith("blocks.7.attention.heads.projections.query   Linear")
    assert blocks(opened) == 12
    x, y = opened.evaluate(
        """(() => { const at = document.querySelector(".box.selected > rect").getBoundingClientRect();
        return [at.x + at.width / 2, at.y + at.height / 2]; })()"""
    )
    assert abs(x - MIDDLE[0]) < 60
    assert abs(y - MIDDLE[1]) < 60


def test_a_search_for_nothing_says_so(opened: Page) -> None:
    opened.type("#search", "no such layer")
    assert text(opened, "#found") == "0 found"


def test_a_tag_shows_where_else_it_is(opened: Page) -> None:
    opened.click('.tag[data-tag="mask"]')
    assert count(opened, ".tag.lit") == 2


def test_it_is_moved_and_zoomed(opened: Page) -> None:
    before = transform(opened)
    opened.drag(MIDDLE, (MIDDLE[0] + 50, MIDDLE[1] + 20))
    moved = transform(opened)
    assert moved != before
    opened.scroll(MIDDLE, -200)
    assert transform(opened).partition("scale")[2] != moved.partition("scale")[2]
    opened.click("#fit")
    assert transform(opened) == before


def test_a_drag_that_begins_on_a_frame_does_not_close_it(opened: Page) -> None:
    boxes = count(opened, ".box")
    opened.drag(MIDDLE, (MIDDLE[0] + 50, MIDDLE[1] + 20))
    assert count(opened, ".box") == boxes


def test_an_edit_is_coloured(page: Page, tmp_path: Path) -> None:
    model = decoder(4)
    before = traced(model)
    select(model, "blocks.1.feedforward").remove()
    plot(model, tmp_path / "edited.html", compared_with=before)
    page.open(tmp_path / "edited.html")
    assert count(page, '.box.removed[data-path^="blocks.1.feedforward"]') > 1
    assert count(page, ".edge.added") > 0
    assert text(page, "#legend") == "■ added■ removed"


def test_names_that_are_html_are_shown_as_they_are(page: Page, tmp_path: Path) -> None:
    plot(named(HOSTILE), tmp_path / "hostile.html")
    page.open(tmp_path / "hostile.html")
    assert count(page, "b") == 0
    assert HOSTILE in page.evaluate("[...document.querySelectorAll('.box .name')].map((name) => name.textContent)")
    # Whatever it is, it is no code.
    assert page.evaluate("document.scripts.length") == 3


def test_it_is_dark_where_that_is_preferred(opened: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    assert opened.evaluate(colour) == "rgb(255, 255, 255)"
    opened.prefer("dark")
    assert opened.evaluate(colour) == "rgb(13, 17, 23)"
    opened.prefer("light")
